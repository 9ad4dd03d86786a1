"""The network laboratory: that it leaves nothing, and that it slows traffic down."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from client.errors import UserError
from tests.netlab import ground
from tests.netlab.inside import inside
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.wire import MAX_HELD_BYTES, Wire

REPOSITORY = Path(__file__).parents[2]
reason = why_not(routers=False)
needs_lab = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")


def test_the_wire_delays_in_order_and_holds_no_more_than_it_may() -> None:
    wire = Wire(0.1)
    sent = [bytes(40 + n) for n in range(100)]
    for n, data in enumerate(sent):
        wire.take(data, n / 1e3)
    assert wire.due(0.0999) is None
    assert [wire.due(1.0) for _ in sent] == sent
    assert wire.next_due is None
    fit = MAX_HELD_BYTES // 65_535
    for _ in range(fit + 10):
        wire.take(bytes(65_535), 2.0)
    assert sum(wire.due(3.0) is not None for _ in range(fit + 10)) == fit


def test_without_rights_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "why_not", lambda: "it takes CAP_NET_ADMIN: run it as root")
    with pytest.raises(UserError, match="run it as root"), Internet({"a": Place()}):
        pass


@needs_lab
def test_one_at_a_time_leaves_nothing() -> None:
    with Internet({"a": Place(), "b": Place()}, rtt_ms=10) as net:
        assert len(ground.ours()) == 3
        sleeper = subprocess.Popen(net.command("a", ["sleep", "60"]))
        with (
            pytest.raises(UserError, match="already has a laboratory"),
            Internet({"c": Place()}),
        ):
            pass
        assert len(ground.ours()) == 3
        assert sleeper.poll() is None
    assert ground.ours() == []
    assert sleeper.wait(10) == -signal.SIGKILL

    with pytest.raises(ZeroDivisionError), Internet({"a": Place()}):
        raise ZeroDivisionError
    assert ground.ours() == []


OTHER = """
from tests.netlab.internet import Internet, Place

with Internet({"a": Place(), "b": Place()}, rtt_ms=10):
    print("built", flush=True)
    input()
"""


@needs_lab
def test_what_a_killed_one_leaves_is_removed_by_the_next() -> None:
    def namespaces() -> list[str]:
        prefix = f"{ground.PREFIX}-{process.pid}-"
        return [name for name in os.listdir("/run/netns") if name.startswith(prefix)]

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], cwd=REPOSITORY, text=True, **pipes
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "built\n"
        with Internet({"a": Place()}):
            assert len(namespaces()) == 3, "its owner lives"
        process.kill()
        process.wait()
        assert len(namespaces()) == 3
        with Internet({"a": Place()}):
            assert namespaces() == []


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
