"""Packets wait where a line is full, and the kernel tells of it."""

from __future__ import annotations

import socket
import statistics
from contextlib import AsyncExitStack

import pytest
import trio

from client.net.tcp import TcpStream
from protocol.relay.lending import QUEUE_S
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.measure import inside

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")
PORT, STREAMS = 4001, 6
PIECE, PIECES = bytes(16 * 1024), 60
PATIENCE_S = 60.0


def stream(net: Internet) -> tuple[TcpStream, TcpStream]:
    """Return both ends of a connection between two hosts."""
    there = net.address("b"), PORT
    with inside(net, "b", lambda: socket.create_server(there)) as server:
        ends = inside(net, "a", lambda: socket.create_connection(there, 10)), server.accept()[0]
    for end in ends:
        end.setblocking(False)
    near, far = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in ends)
    return TcpStream(near), TcpStream(far)


async def waits(net: Internet, streams: int, pause_s: float) -> float:
    """Send on several connections; return how long packets wait on the median of all moments."""
    found: list[float] = []

    async def read(end: TcpStream) -> None:
        while await end.receive_some(1 << 16):
            pass

    async def send(end: TcpStream) -> None:
        for _ in range(PIECES):
            await end.send_all(PIECE)
            found.append(end.queue_s)
            await trio.sleep(pause_s)

    with trio.fail_after(PATIENCE_S):
        async with AsyncExitStack() as stack, trio.open_nursery() as readers:
            async with trio.open_nursery() as senders:
                for _ in range(streams):
                    near, far = stream(net)
                    stack.push_async_callback(near.aclose)
                    stack.push_async_callback(far.aclose)
                    readers.start_soon(read, far)
                    senders.start_soon(send, near)
            readers.cancel_scope.cancel()
    return statistics.median(found)


async def test_packets_wait_where_a_line_is_full() -> None:
    with Internet({"a": Place(), "b": Place(down_mbit=10)}, rtt_ms=20) as net:
        assert await waits(net, STREAMS, 0.0) > QUEUE_S


async def test_and_nowhere_else() -> None:
    """Without the wire, whose delays depend on what else runs on this machine."""
    with Internet({"a": Place(), "b": Place(down_mbit=10)}) as net:
        assert await waits(net, 1, 0.1) < QUEUE_S
