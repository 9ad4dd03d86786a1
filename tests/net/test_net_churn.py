"""Streams that a peer opens only to end them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from client.net.errors import ConnectionLost
from client.net.host import Connection
from client.net.yamux import YamuxLimits
from client.net.yamux_stream import ACK, HEADER, PING, RST, SYN, WINDOW_UPDATE

if TYPE_CHECKING:
    from tests.net.conftest import Hosts, Intrude

BURST = int(YamuxLimits().opened_burst)


def frame(kind: int, flags: int, stream_id: int, length: int = 0) -> bytes:
    return HEADER.pack(0, kind, flags, stream_id, length)


def churn(first: int, count: int) -> bytes:
    ids = [2 * number + 1 for number in range(first, first + count)]
    return b"".join(frame(WINDOW_UPDATE, flags, one) for one in ids for flags in (SYN, RST))


async def test_streams_that_come_and_go_without_end_are_a_violation(
    hosts: Hosts, intrude: Intrude
) -> None:
    connections: list[Connection] = []

    async def stay(connection: Connection) -> None:
        connections.append(connection)
        await connection.run(trio.sleep_forever)
        connection.ended.set()

    async with hosts(stay) as host, intrude(host.addresses[0]) as attacker:
        await attacker.channel.send([churn(0, BURST), frame(PING, SYN, 0, 9)])
        answers = b""
        while frame(PING, ACK, 0, 9) not in answers:  # so many are allowed
            answers += b"".join(await attacker.channel.receive())
        (victim,) = connections
        assert victim.violation is None
        with contextlib.suppress(ConnectionLost):
            for first in range(BURST, 20 * BURST, 64):
                await attacker.channel.send([churn(first, 64)])
        await victim.ended.wait()
        assert victim.violation is not None
        assert victim.reason == victim.violation.reason == "stream-flood"
