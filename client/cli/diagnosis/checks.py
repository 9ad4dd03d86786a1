"""The checks of ``volunteer doctor``: each examines one thing and says what to do about it.

A check changes nothing that a first ``join`` would not create, and never raises.
"""

import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
from msgspec import Struct

from client.cli.software import package_version
from client.config import EVERYWHERE
from client.errors import OF_THE_MACHINE
from client.limits.cores import control_groups
from client.store.paths import create_folders
from client.views.words import size as human_bytes
from model_zoo.specs.packages import install

Status = Literal["ok", "warn", "fail"]
EXACT_VERSIONS = {"libp2p": "0.8.1"}
"""Packages whose faults client/net mends for exactly this version."""
MIN_FREE_DISK_BYTES = 2 * 10**9
PROBE_BYTES = 64 * 1024
"""A volunteer cannot even keep its notes where there is no room for this."""
MIN_FREE_MEMORY_BYTES = 10**9
IMPORT_TIMEOUT_S = 120.0
OTHERWISE = "check the disk, or choose another folder with VOLUNTEER_HOME"


class Check(Struct, frozen=True):
    """Outcome of one check."""

    name: str
    status: Status
    words: str
    next_step: str = ""


def check_package(name: str) -> Check:
    """A package is installed, in the required version where that matters."""
    found = package_version(name)
    if found is None:
        return Check(name, "fail", "not installed", install(name))
    wanted = EXACT_VERSIONS.get(name, found)
    if found != wanted:
        return Check(name, "fail", f"{found}, needs {wanted}", install(f"{name}=={wanted}"))
    return Check(name, "ok", found)


def check_import(name: str) -> Check:
    """A heavy package really loads; in a process of its own, as it will be used."""
    command = [sys.executable, "-c", f"import {name}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Check(
            f"import {name}", "fail", "takes too long", "check that the disk works; it is very slow"
        )
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Check(f"import {name}", "fail", " ".join(last), f"reinstall {name}")
    return Check(f"import {name}", "ok", "loads")


def check_folder(name: str, folder: Path, checkpoints_bytes: int = 0) -> Check:
    """A folder of ours can be written and has room for checkpoints; those of a stage that are kept
    at a time take ``checkpoints_bytes`` at most."""
    try:
        create_folders(folder)
        free = shutil.disk_usage(folder).free
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        words = f"{folder}: {error.strerror}"
        return Check(name, "fail", words, OF_THE_MACHINE.get(error.errno or 0, OTHERWISE))
    words = f"{folder}, {free / 1e9:.1f} GB free"
    if free < max(MIN_FREE_DISK_BYTES, checkpoints_bytes):
        needed = f": checkpoints of a stage take up to {human_bytes(checkpoints_bytes)}"
        return Check(name, "warn", words, f"free space{needed if checkpoints_bytes else ''}")
    return Check(name, "ok", words)


def check_memory() -> Check:
    """There is memory for a worker, also within the control group of a service or container."""
    free, limit = psutil.virtual_memory().available, _group_limit_bytes()
    words = f"{free / 1e9:.1f} GB free"
    if limit is not None and limit < free:
        free, words = limit, f"{limit / 1e9:.1f} GB, which is all that its control group may use"
    if free < MIN_FREE_MEMORY_BYTES:
        step = "close programs or raise the limit, or join a swarm with small stages"
        return Check("memory", "warn", f"{words}; a worker needs about 1 GB and its stage", step)
    return Check("memory", "ok", words)


def _group_limit_bytes() -> int | None:
    """Return the memory that the control groups (version 2) allow this process; None: no limit."""
    limits = []
    for folder in control_groups():
        with suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int((folder / "memory.max").read_text(encoding="utf-8")))
    return min(limits, default=None)


def check_port(host: str, port: int, own: int | None = None) -> Check:
    """The port for other volunteers is free; 0 means any port.

    Args:
        host: the address to listen on.
        port: the port.
        own: process of the volunteer of this home, which may use it.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0" if host == EVERYWHERE else host, port))
    except (OSError, UnicodeError) as error:
        return _port_trouble(host, port, own, error)
    return Check("port", "ok", f"{host}:{port} is free" if port else "any")


def _port_trouble(host: str, port: int, own: int | None, error: Exception) -> Check:
    words = f"{host}:{port}: {getattr(error, 'strerror', None) or error}"
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        user = _listens_on(port)
        if user is not None and user == own:
            return Check("port", "ok", f"{host}:{port}, in use by the volunteer of this home")
        named = f" by process {user}" if user else " by another program or volunteer"
        step = f"stop it, or choose another: volunteer config set listen_port {port + 1}"
        return Check("port", "fail", f"{words}{named}", step)
    if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM):
        step = "choose a port above 1023: volunteer config set listen_port 4001"
        return Check("port", "fail", words, step)
    step = "correct the setting: volunteer config set listen_host all"
    return Check("port", "fail", f"{words}: not an address of this machine", step)


def _listens_on(port: int) -> int | None:
    """Return the process that listens on a TCP port; None: another user's, or not known."""
    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid:
                return int(one.pid)
    return None
