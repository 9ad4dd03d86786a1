"""Hosts of a cluster job on loopback: this process is the first, others follow in their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from client.cli.reach.home import free_port
from client.compute.hosts.job import Job
from client.compute.hosts.leading import Hosts

HOST = "127.0.0.1"
KEY = bytes(range(32))
VERSION = "1"

_FOLLOWER = """
    import sys, trio
    from client.compute.hosts.following import Following
    from client.compute.hosts.job import Job
    from client.errors import UserError

    hosts, index, port, key, device, version = sys.argv[1:]
    job = Job(int(hosts), int(index), "127.0.0.1", int(port), bytes.fromhex(key))
    say = lambda words: print(words, file=sys.stderr, flush=True)
    try:
        sys.exit(trio.run(Following(job, device, version, say).run, trio.Event()))
    except UserError as error:
        say(error.message)
        sys.exit(error.exit_code)
"""


def job(hosts: int = 2) -> Job:
    """A job on a free port."""
    return Job(hosts, 0, HOST, free_port(HOST), KEY)


def follow(
    place: Job, index: int = 1, *, key: bytes = KEY, device: str = "cpu", version: str = VERSION
) -> subprocess.Popen[bytes]:
    """Start another host of a job, as a process with its own folder."""
    words = [place.hosts, index, place.port, key.hex(), device, version]
    command = [sys.executable, "-c", textwrap.dedent(_FOLLOWER), *map(str, words)]
    return subprocess.Popen(command, env={**os.environ}, stderr=subprocess.PIPE)


@asynccontextmanager
async def leading(
    place: Job,
    device: str = "cpu",
    wait_s: float = 120.0,
    explain: Callable[[str], None] = print,
) -> AsyncIterator[Hosts]:
    """The first host, listening, for the length of the block; then the others are told to end."""
    hosts = Hosts(place, device, VERSION, explain, wait_s)
    async with trio.open_nursery() as nursery:
        await nursery.start(hosts.run)
        try:
            yield hosts
        finally:
            await hosts.end(0)
            nursery.cancel_scope.cancel()
