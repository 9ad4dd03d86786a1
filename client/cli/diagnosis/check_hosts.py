"""The check of ``volunteer doctor`` of the hosts of a cluster job that are one volunteer."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from client.cli.diagnosis.checks import Check
from client.compute.hosts.job import job_of
from client.config import Settings
from client.control.snapshot import WorkerView
from client.errors import ConfigError


def check_hosts(settings: Settings, environ: Mapping[str, str]) -> Check | None:
    """Whether the job is known, and its first host has an address; None: this host is alone."""
    try:
        job = job_of(settings, environ)
    except ConfigError as error:
        return Check("hosts", "fail", error.message, error.next_step)
    if job is None:
        return None
    words = f"host {job.index} of {job.hosts}; the first one awaits the others at "
    words += f"{job.address}:{job.port}"
    try:
        socket.getaddrinfo(job.address, job.port)
    except OSError as error:
        return Check("hosts", "fail", f"{words}: {error.strerror}", "check --hosts-address")
    return Check("hosts", "ok", words)


def ranks_by_host(workers: list[WorkerView]) -> str:
    """Return which host computes on which devices, of workers on several; empty: there is none."""
    found: dict[str, list[str]] = {}
    for rank in (rank for worker in workers for rank in worker.ranks if rank.host):
        devices = found.setdefault(rank.host, [])
        if rank.device not in devices:
            devices.append(rank.device)
    return "; ".join(f"{host}: {', '.join(devices)}" for host, devices in found.items())
