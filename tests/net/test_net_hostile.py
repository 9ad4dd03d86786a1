"""Hostile peers on real sockets: authenticated, and then they break the rules."""

import contextlib

import pytest
import trio

from client.net.errors import DialError
from client.net.handshake import request_protocol
from client.net.libp2p_patches import GuardedStream
from client.net.links import LANES
from client.net.network import PeerDown, PeerUp
from client.net.relay.exchange import FAILURES, ask
from client.net.yamux import (
    HEADER,
    MAX_REPLY_BYTES,
    OPENED_BURST,
    PING,
    SYN,
    YamuxSession,
)
from protocol.relay.messages import Moving, Status
from protocol.wire.framing import PREFIX, encode_frame
from protocol.wire.messages import Chunk, Goodbye, encode_message
from tests.support.arrivals import backward, is_up, next_inbound, say, until
from tests.support.loopback import Intrude, Networks


@contextlib.asynccontextmanager
async def hostile_lane(intrude: Intrude, address: str, name: str):  # type: ignore[no-untyped-def]
    """An authenticated attacker with one lane open: yields (peer id, write)."""
    async with intrude(address) as proved, trio.open_nursery() as nursery:
        session = YamuxSession(proved, dialler=True)

        async def run() -> None:
            with contextlib.suppress(Exception):
                await session.run()

        nursery.start_soon(run)
        stream = await session.open_stream()
        await request_protocol(GuardedStream(stream), LANES[name])
        yield session, stream
        nursery.cancel_scope.cancel()


HEADER_OK = encode_message(Goodbye("1"))
BULK_OK = encode_message(backward(1))
SKIPPED = {
    "not msgpack": ("control", b"".join(encode_frame(b"\xc1\xc1")), "message-malformed"),
    "bulk on control": ("control", b"".join(encode_frame(BULK_OK)), "wrong-lane"),
    "control on bulk": ("bulk", b"".join(encode_frame(HEADER_OK)), "wrong-lane"),
}
FATAL = {
    "no header": ("control", PREFIX.pack(0, 5) + b"12345", "header-size"),
    "payload on control": ("control", PREFIX.pack(len(HEADER_OK), 1) + HEADER_OK, "payload-size"),
    "malformed with payload": ("bulk", PREFIX.pack(2, 9) + b"\xc1\xc1", "payload-size"),
    "over its own message's limit": (
        "bulk",
        PREFIX.pack(len(c := encode_message(Chunk(bytes(32), 0))), 2**21 + 1) + c,
        "payload-size",
    ),
}


@pytest.mark.parametrize(("name", "data", "reason"), SKIPPED.values(), ids=SKIPPED.keys())
async def test_a_bad_message_is_skipped_and_counted(
    networks: Networks, intrude: Intrude, name: str, data: bytes, reason: str
) -> None:
    good = encode_message(backward(7) if name == "bulk" else Goodbye("7"))
    async with networks() as a, hostile_lane(intrude, a.addresses[0], name) as (_, stream):
        await until(lambda: a._links)
        next(
            iter(a._links.values())
        ).up.set()  # the attacker accepts no lanes, so it never comes up
        await stream.send_all([data, *encode_frame(good)])
        await next_inbound(a)
        assert a.statistics().refused[reason] == 1


@pytest.mark.parametrize(("name", "data", "reason"), FATAL.values(), ids=FATAL.keys())
async def test_a_bad_length_ends_the_link_and_nothing_else(
    networks: Networks, intrude: Intrude, name: str, data: bytes, reason: str
) -> None:
    async with networks() as a, networks() as honest:
        async with hostile_lane(intrude, a.addresses[0], name) as (session, stream):
            await stream.send_all([data])
            await until(lambda: session.closed)
        assert a.statistics().refused[reason] == 1
        await honest.connect(a.addresses[0])
        await say(honest, a.peer_id, Goodbye("1"))
        assert (await next_inbound(a)).message == Goodbye("1")


@pytest.mark.parametrize("length", range(0, PREFIX.size + len(BULK_OK) + 3, 3))
async def test_an_end_inside_a_frame_is_noticed(
    networks: Networks, intrude: Intrude, length: int
) -> None:
    data = b"".join(encode_frame(BULK_OK, b"pay"))[:length]
    async with networks() as a, hostile_lane(intrude, a.addresses[0], "bulk") as (session, stream):
        await stream.send_all([data])
        stream.send_eof()
        if length:
            await until(lambda: session.closed)
        assert a.statistics().refused.get("frame-truncated", 0) == (1 if length else 0)


async def test_a_lane_cannot_be_opened_twice(networks: Networks, intrude: Intrude) -> None:
    async with networks() as a, hostile_lane(intrude, a.addresses[0], "bulk") as (session, _):
        again = await session.open_stream()
        with contextlib.suppress(Exception):
            await request_protocol(GuardedStream(again), LANES["bulk"])
        await until(lambda: session.closed)
        assert a.statistics().refused["lane-opened-twice"] == 1


async def test_who_says_without_end_that_it_moves_loses_the_link(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        connection = b.direct(a.peer_id)
        assert connection is not None
        with contextlib.suppress(*FAILURES):
            for _ in range(int(OPENED_BURST) + 50):
                stream, answer = await ask(connection, Moving())
                assert answer == Status("ok")
                stream.send_eof()
        await until(lambda: a.statistics().refused.get("stream-flood") == 1)
        while not isinstance(told := await a.events.receive(), PeerDown):
            pass
        assert told == PeerDown(b.peer_id, "stream-flood"), "its process has not ended"


async def test_an_answer_that_nobody_has_asked_for_is_a_broken_rule(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        connection = b.direct(a.peer_id)
        assert connection is not None
        with contextlib.suppress(*FAILURES):
            await ask(connection, Status("ok"))
        await until(lambda: a.statistics().refused.get("relay-message-unasked") == 1)


def unfinished(payload_bytes: int) -> bytes:
    """A bulk frame without its last byte."""
    return b"".join(encode_frame(BULK_OK, bytes(payload_bytes)))[:-1]


async def test_a_frame_that_is_never_ended_ends_the_link(
    networks: Networks, intrude: Intrude, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.net.unfinished.PATIENCE_S", 0.5)
    async with networks() as a, hostile_lane(intrude, a.addresses[0], "bulk") as (session, stream):
        await stream.send_all([unfinished(1024 * 1024)])
        while not session.closed:  # though it shows that it is there
            session.reply(HEADER.pack(0, PING, SYN, 0, 1))
            await trio.sleep(0.01)
        assert a.statistics().refused["frame-too-slow"] == 1
        assert a._common.unfinished.held_bytes == 0


async def test_of_frames_that_are_not_ended_the_oldest_costs_its_link_where_there_is_no_room(
    networks: Networks, intrude: Intrude
) -> None:
    async with (
        networks() as a,
        hostile_lane(intrude, a.addresses[0], "bulk") as (oldest, first),
        hostile_lane(intrude, a.addresses[0], "bulk") as (newest, second),
    ):
        await first.send_all([unfinished(2**20)])
        await until(lambda: a._common.unfinished.held_bytes > 2**20 - 1000)
        a._common.unfinished._budget_bytes = 3 * 2**19
        await second.send_all([unfinished(2**20)])
        await until(lambda: oldest.closed)
        assert not newest.closed
        assert a.statistics().refused["unfinished-frames"] == 1
        assert a._common.unfinished.held_bytes <= 3 * 2**19


async def test_a_frame_larger_than_any_of_the_run_is_not_begun(
    networks: Networks, intrude: Intrude
) -> None:
    async with networks() as a, hostile_lane(intrude, a.addresses[0], "bulk") as (session, stream):
        a.expect_payloads(1000, 500, 0)
        await until(lambda: a._links)
        next(iter(a._links.values())).up.set()
        await stream.send_all(encode_frame(BULK_OK, bytes(1000)))
        await next_inbound(a)
        await stream.send_all([unfinished(1001)])
        await until(lambda: session.closed)
        assert a.statistics().refused["payload-size"] == 1


async def test_repeated_offences_ban_the_peer(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        await is_up(a, b)
        for _ in range(10):
            a.penalise(b.peer_id, 10, "bad-signature")
        assert await a.events.receive() == PeerUp(b.peer_id)
        assert await a.events.receive() == PeerDown(b.peer_id, "banned: bad-signature")
        assert await b.events.receive() == PeerUp(a.peer_id)
        assert await b.events.receive() == PeerDown(a.peer_id, "closed by the peer", by_peer=False)
        with pytest.raises(DialError):
            await b.connect(a.addresses[0])
        with pytest.raises(DialError, match="banned"):
            await a.connect(b.addresses[0])
        assert a.statistics().refused["bad-signature"] == 10


async def test_a_peer_that_reads_no_answers_ends_its_link_and_not_the_network(
    networks: Networks,
) -> None:
    """Whoever is silent is pinged, by the task that watches all links."""
    async with networks() as a, networks() as b, networks() as honest:
        await b.connect(a.addresses[0])
        await is_up(a, b)
        connection = a._links[b.peer_id].connection
        assert connection is not None
        connection.session._replies += bytes(MAX_REPLY_BYTES)
        connection.session.ping()
        await connection.ended.wait()
        await honest.connect(a.addresses[0])
        await is_up(a, honest)
