"""Starting a worker process with its socket, shared memory and stderr pipe. Holds no state."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from client.compute.ring import RingReader, RingWriter, create_shared_file

RING_BYTES = 16 << 20
"""Per direction. All of it becomes resident in the node over time, so it is no larger than a few
boundary tensors; larger payloads go through the socket."""
# Keep glibc from returning every large tensor's pages to the kernel and faulting them in again:
# measured 10 % of the worker's time. Other allocators ignore this; the user's settings win.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
# Threads that wait for work sleep instead of spinning. A spinning thread takes a core from the node
# and from other volunteers; when it waited for a thread without a core, a step took ten times the
# processor time. The user's settings win.
WAITING = {"OMP_WAIT_POLICY": "passive"}
WORKER_COMMAND = (sys.executable, "-m", "client.compute.worker")


@dataclass(frozen=True, slots=True)
class Launched:
    """A started process and the node's ends of the shared resources.

    `stderr` is the descriptor to read the process's output from; its owner closes it.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket
    outgoing: RingWriter
    incoming: RingReader
    stderr: int


def launch(command: Sequence[str] = WORKER_COMMAND, ring_bytes: int = RING_BYTES) -> Launched:
    """Start a worker; call this from the thread that lives as long as the node.

    The kernel's parent-death signal follows the thread that forked, not the process: a child
    started from a pool thread would be killed as soon as that thread is retired.

    Raises:
        OSError: the process cannot be started.
    """
    with ExitStack() as on_failure, ExitStack() as child_ends:
        ours, theirs = socket.socketpair()
        on_failure.callback(ours.close)
        child_ends.callback(theirs.close)
        stderr, stderr_end = os.pipe()
        on_failure.callback(os.close, stderr)
        child_ends.callback(os.close, stderr_end)
        rings = []
        for _ in range(2):
            rings.append(create_shared_file(ring_bytes))
            child_ends.callback(os.close, rings[-1])
        outgoing, incoming = RingWriter(rings[0]), RingReader(rings[1])
        process = _spawn(command, theirs.fileno(), rings, stderr_end)
        on_failure.pop_all()
        return Launched(process, ours, outgoing, incoming, stderr)


def _spawn(
    command: Sequence[str], connection: int, rings: Sequence[int], stderr: int
) -> subprocess.Popen[bytes]:
    numbers = ["--fd", connection, "--rings", *rings, "--parent", os.getpid()]
    return subprocess.Popen(
        [*command, *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=stderr,
        stderr=stderr,
        pass_fds=(connection, *rings),
        env={**ALLOCATOR, **WAITING, **os.environ},
    )
