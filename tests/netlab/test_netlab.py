"""The network laboratory slows traffic down as it says."""

import socket
import threading
import time
from contextlib import suppress

import pytest

from tests.netlab.inside import inside
from tests.netlab.internet import Internet, Place, why_not

reason = why_not(routers=False)
needs_lab = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")


@needs_lab
@pytest.mark.slow
def test_rate_and_delay_are_about_what_they_should_be() -> None:
    places = {"a": Place(up_mbit=20, down_mbit=20), "b": Place(up_mbit=80, down_mbit=80)}
    with Internet({**places, "c": places["b"]}, rtt_ms=60) as net:
        for source, target, least, most in (("a", "b", 10, 22), ("b", "c", 40, 88)):
            took_s, mbit = _streamed(net, source, target)
            assert 0.06 <= took_s < 0.12
            assert least < mbit < most


def _streamed(net: Internet, source: str, target: str) -> tuple[float, float]:
    """Return how long a dial takes, and the Mb/s of a TCP stream once it has got going."""
    address = net.public(target)
    with (
        inside(net, target, lambda: socket.create_server((address, 0))) as listener,
        inside(net, source, socket.socket) as sender,
    ):
        sender.settimeout(20.0)
        began = time.perf_counter()
        sender.connect(listener.getsockname())
        took_s = time.perf_counter() - began
        with listener.accept()[0] as receiver:
            sending = threading.Thread(target=_send, args=(sender,), daemon=True)
            sending.start()
            _receive(receiver, 2.5)
            mbit = _receive(receiver, 1.0)
        sending.join(20.0)
    return took_s, mbit


def _send(sender: socket.socket) -> None:
    with suppress(OSError):
        while True:
            sender.sendall(bytes(256 * 1024))


def _receive(receiver: socket.socket, seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < seconds:
        count += len(receiver.recv(256 * 1024))
    return count * 8 / 1e6 / taken
