"""The relay on real sockets: it passes, loses, delays and slows, in both directions."""

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from client.lab.chaos.relay import CLEAR, LOOPBACK, Relay, Rules, Shape
from client.lab.chaos.wires import Wires

LIMIT_S = 20.0
MOMENT_S = 0.2


@asynccontextmanager
async def relayed(rules: Rules) -> AsyncIterator[trio.SocketStream]:
    """A stream through the relay of ``b``, behind which everything is sent back."""

    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    async def knows(their_port: int, our_port: int) -> str | None:
        return "a"

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, echo, 0, host=LOOPBACK)
            (listener,) = await nursery.start(serve)
            relay = Relay("b", listener.socket.getsockname()[1], rules, knows)
            port: int = await nursery.start(relay.serve)
            async with await trio.open_tcp_stream(LOOPBACK, port) as stream:
                yield stream
            nursery.cancel_scope.cancel()


async def _receive(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        assert more, "closed"
        data += more
    return data


@pytest.mark.parametrize("end", ["a", "b"])
async def test_a_partition_loses_nothing_that_comes_after_it(end: str) -> None:
    rules = Rules()
    async with relayed(rules) as stream:
        await stream.send_all(b"before")
        assert await _receive(stream, 6) == b"before"
        rules.set(end, Shape(blocked=True))
        await stream.send_all(b"during")
        with trio.move_on_after(MOMENT_S) as waiting:
            await stream.receive_some(1)
        assert waiting.cancelled_caught
        rules.set(end, CLEAR)
        assert await _receive(stream, 6) == b"during"


async def test_a_rule_is_for_its_volunteer_alone() -> None:
    rules = Rules()
    rules.set("c", Shape(blocked=True))
    async with relayed(rules) as stream:
        await stream.send_all(b"x")
        assert await _receive(stream, 1) == b"x"


async def test_a_slow_line_takes_its_time() -> None:
    rules = Rules()
    rules.set("a", Shape(bytes_per_s=100_000.0))
    async with relayed(rules) as stream, trio.open_nursery() as nursery:
        begin = trio.current_time()
        nursery.start_soon(stream.send_all, bytes(50_000))
        await _receive(stream, 50_000)
        assert trio.current_time() - begin >= 0.5


def test_wires_know_who_dials_and_end_with_their_block() -> None:
    with (
        Wires(lambda: {"me": os.getpid()}) as wires,
        socket.create_server((LOOPBACK, 0)) as server,
    ):
        port = wires.add("b", server.getsockname()[1])
        wires.surround("b", Shape(delay_s=0.3))
        with socket.create_connection((LOOPBACK, port), timeout=LIMIT_S) as dialler:
            server.settimeout(LIMIT_S)
            behind, _ = server.accept()
            with behind:
                behind.settimeout(LIMIT_S)
                begin = time.monotonic()
                dialler.sendall(b"x")
                assert behind.recv(1) == b"x"
                assert time.monotonic() - begin >= 0.3
                begin = time.monotonic()
                wires.surround("me", Shape(blocked=True))
                behind.sendall(b"y")
                dialler.settimeout(MOMENT_S)
                with pytest.raises(TimeoutError):
                    dialler.recv(1)
                wires.surround("me", CLEAR)
                dialler.settimeout(LIMIT_S)
                assert dialler.recv(1) == b"y"
