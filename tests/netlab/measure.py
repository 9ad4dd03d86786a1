"""Measures a laboratory's traffic: the rate of a TCP stream, round-trip times.

Sockets are made inside the namespaces, by threads that have entered them, and used from here.
"""

from __future__ import annotations

import ctypes
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from tests.netlab.lab import Lab

DIALS = 15
WARM_S = 1.5
"""A stream's start, until it fills the line; and at least so many round trips:"""
WARM_TRIPS = 20
STREAM_S = 3.0
LARGE_BYTES = 500_000
"""Lines that hold less are left to what the kernel finds."""
_CLONE_NEWNET = 0x40000000
_SO_SNDBUFFORCE = 32
Made = TypeVar("Made")


class Hosts(Protocol):
    """A laboratory, as far as it has namespaces."""

    def namespace(self, host: str) -> str:
        """Return the name of a host's namespace."""
        ...


def inside(lab: Hosts, host: str, make: Callable[[], Made]) -> Made:
    """Return what a function makes in a host's namespace; a socket stays there for good."""
    made: list[Made] = []
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            kernel = ctypes.CDLL(None, use_errno=True)
            with Path("/run/netns", lab.namespace(host)).open("rb") as namespace:
                if kernel.setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(make())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def rtt_ms(lab: Lab, one: str, other: str) -> float:
    """Return the median time from a TCP SYN to its answer, which is the kernel's."""
    took = []
    with inside(lab, other, lambda: socket.create_server((lab.address(other), 0))) as listener:
        target = listener.getsockname()
        for _ in range(DIALS):
            with inside(lab, one, socket.socket) as dialler:
                dialler.settimeout(20.0)
                start = time.perf_counter()
                dialler.connect(target)
                took.append(1e3 * (time.perf_counter() - start))
                listener.accept()[0].close()
    return statistics.median(took)


def stream_mbit(
    lab: Lab, source: str, target: str, seconds: float = STREAM_S, warm_s: float = WARM_S
) -> float:
    """Return the Mb/s of payload that a TCP stream carries once it has got going.

    It may have as much under way as the line holds, four times over. A program that does not ask
    for it has what the machine allows, ``net.ipv4.tcp_wmem``: with the usual 4 MB that is about
    110 Mb/s at 200 ms.
    """
    trip_s = lab.rtt_ms / 1e3
    holds = lab.rate_mbit(source, target) * 1e6 / 8 * trip_s
    warm_s += WARM_TRIPS * trip_s
    with ExitStack() as stack:
        listener = stack.enter_context(
            inside(lab, target, lambda: socket.create_server((lab.address(target), 0)))
        )
        sender = stack.enter_context(inside(lab, source, socket.socket))
        sender.settimeout(20.0)
        if holds > LARGE_BYTES:
            sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, int(4 * holds))
        sender.connect(listener.getsockname())
        receiver = stack.enter_context(listener.accept()[0])
        receiver.settimeout(20.0)
        sending = threading.Thread(target=_send, args=(sender,), daemon=True)
        sending.start()
        _receive(receiver, warm_s)
        start = time.perf_counter()
        count = _receive(receiver, seconds)
        rate = count * 8 / 1e6 / (time.perf_counter() - start)
        receiver.close()
        with suppress(OSError):
            sender.shutdown(socket.SHUT_RDWR)
        sending.join(20.0)
    return rate


def _send(sender: socket.socket) -> None:
    data = os.urandom(256 * 1024)
    with suppress(OSError):
        while True:
            sender.sendall(data)


def _receive(receiver: socket.socket, seconds: float) -> int:
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += len(receiver.recv(256 * 1024))
    return count
