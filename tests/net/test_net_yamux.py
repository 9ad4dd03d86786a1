"""Yamux on real sockets: honest use, and a table of ways to break its rules."""

import contextlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import pytest
import trio
import trio.testing

from client.net.errors import ConnectionLost, StreamReset
from client.net.host import Connection
from client.net.secure import MAX_PLAINTEXT_BYTES, SecureChannel
from client.net.windows import INITIAL_WINDOW_BYTES
from client.net.yamux import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER,
    INBOUND_STREAMS,
    MAX_REPLY_BYTES,
    OPENED_BURST,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    YamuxSession,
    YamuxStream,
)
from protocol.errors import RemoteProtocolError
from protocol.relay.holding import Room
from tests.support.arrivals import buffered, buffered_bytes, until
from tests.support.loopback import Hosts, Intrude, dialled

CHUNK_BYTES = MAX_PLAINTEXT_BYTES - HEADER.size
Pair = tuple[YamuxSession, YamuxSession]


def frame(kind: int, flags: int, stream_id: int, length: int = 0, version: int = 0) -> bytes:
    return HEADER.pack(version, kind, flags, stream_id, length)


class Sessions:
    """A handler that hands connections to the test and keeps them running."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self._more = trio.Event()

    async def __call__(self, connection: Connection) -> None:
        self.opened.append(connection)
        self._more.set()
        await connection.run(trio.sleep_forever)
        connection.ended.set()

    async def first(self) -> Connection:
        await self._more.wait()
        return self.opened[0]


HOSTILE: dict[str, tuple[bytes, str]] = {
    "another version": (frame(DATA, SYN, 1, version=1), "yamux-frame"),
    "an unknown type": (frame(9, 0, 1), "yamux-frame"),
    "an id of ours": (frame(DATA, SYN, 2), "yamux-stream-id"),
    "id zero": (frame(WINDOW_UPDATE, SYN, 0), "yamux-stream-id"),
    "an id twice": (frame(WINDOW_UPDATE, SYN, 1) * 2, "yamux-stream-id"),
    "4 GiB announced": (frame(DATA, SYN, 1, 2**32 - 1), "window-exceeded"),
    "a byte over the window": (frame(DATA, SYN, 1, INITIAL_WINDOW_BYTES + 1), "window-exceeded"),
    "data after the end": (
        frame(DATA, SYN | FIN, 1, 5) + b"12345" + frame(DATA, 0, 1, 1) + b"6",
        "data-after-end",
    ),
    "the same stream again after its end": (
        frame(WINDOW_UPDATE, SYN, 1) + frame(WINDOW_UPDATE, FIN | SYN, 1),
        "yamux-stream-id",
    ),
    "garbage": (b"\xde\xad\xbe\xef" * 30, "yamux-frame"),
}


@pytest.mark.parametrize(("data", "reason"), HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("piece", [1, 5, 12, 10**6])
async def test_a_broken_rule_ends_the_connection_with_its_name(
    hosts: Hosts, intrude: Intrude, data: bytes, reason: str, piece: int
) -> None:
    sessions = Sessions()
    async with hosts(sessions) as host, intrude(host.addresses[0]) as attacker:
        await attacker.send_all(
            [data[start : start + piece] for start in range(0, len(data), piece)]
        )
        with contextlib.suppress(ConnectionLost):  # or it ends without an error
            while await attacker.receive():
                pass
        victim = await sessions.first()
        await victim.ended.wait()
        assert victim.reason == victim.session.violation.reason == reason
        assert victim.session.violation.penalty > 0


async def test_an_unread_flood_stays_within_the_windows(hosts: Hosts, intrude: Intrude) -> None:
    sessions = Sessions()
    async with hosts(sessions) as host, intrude(host.addresses[0]) as attacker:
        window = frame(DATA, 0, 1, CHUNK_BYTES) + b"x" * CHUNK_BYTES
        await attacker.send_all([frame(WINDOW_UPDATE, SYN, 1)])
        victim = await sessions.first()
        most = 0
        with contextlib.suppress(ConnectionLost):
            for _ in range(1000):  # 64 MB into a window of 256 KiB
                await attacker.send_all([window])
                most = max(most, buffered_bytes(victim.session))
        await victim.ended.wait()
        assert most <= INITIAL_WINDOW_BYTES
        assert victim.reason == "window-exceeded"


@pytest.mark.parametrize("sizes", [[1], [1, 40_000], [20_000], [MAX_PLAINTEXT_BYTES], [33_000, 2]])
def test_data_holds_on_to_no_more_than_twice_its_size(sizes: list[int]) -> None:
    class Idle:
        closed = False
        trip_s = 0.1
        budget = Room(0)

    async def fill() -> None:
        stream, total = YamuxStream(cast(YamuxSession, Idle()), 1), 0
        for _ in range(200):
            for size in sizes:
                stream.on_data(memoryview(bytes(MAX_PLAINTEXT_BYTES))[:size])
                total += size
        held = sum(_memory(chunk) for chunk in stream._chunks)
        assert buffered(stream) == total
        assert held <= 2.1 * total + MAX_PLAINTEXT_BYTES

    trio.run(fill)


def _memory(chunk: object) -> int:
    return sys.getsizeof(chunk.obj if isinstance(chunk, memoryview) else chunk) + 200


async def test_streams_are_capped_and_data_for_refused_ones_is_dropped(
    hosts: Hosts, intrude: Intrude
) -> None:
    sessions = Sessions()
    async with hosts(sessions) as host, intrude(host.addresses[0]) as attacker:
        for number in range(200):
            data = frame(DATA, SYN, 2 * number + 1, 1000) + b"x" * 1000
            await attacker.send_all([data])
        await attacker.send_all([frame(PING, SYN, 0, 7)])
        answers = b""
        while frame(PING, 2, 0, 7) not in answers:
            answers += b"".join(await attacker.receive())
        victim = await sessions.first()
        kept = INBOUND_STREAMS
        assert buffered_bytes(victim.session) == kept * 1000
        resets = [number for number in range(200) if _reset(2 * number + 1) in answers]
        assert resets == list(range(kept, 200))


async def test_an_answer_to_what_was_not_asked_measures_nothing(
    hosts: Hosts, intrude: Intrude
) -> None:
    sessions = Sessions()
    async with hosts(sessions) as host, intrude(host.addresses[0]) as attacker:
        unasked = [frame(PING, ACK, 0, number) for number in (0, 1, 12345)]
        await attacker.send_all([*unasked, frame(PING, SYN, 0, 9)])
        answers = b""
        while frame(PING, ACK, 0, 9) not in answers:
            answers += b"".join(await attacker.receive())
        victim = await sessions.first()
        assert victim.session.answers == 0
        assert victim.session.rtt_s is None


def _reset(stream_id: int) -> bytes:
    return frame(WINDOW_UPDATE, RST, stream_id)


BURST = int(OPENED_BURST)


def churn(first: int, count: int) -> bytes:
    """Streams that are opened only to be ended."""
    ids = [2 * number + 1 for number in range(first, first + count)]
    return b"".join(frame(WINDOW_UPDATE, flags, one) for one in ids for flags in (SYN, RST))


async def test_streams_that_come_and_go_without_end_are_a_violation(
    hosts: Hosts, intrude: Intrude
) -> None:
    sessions = Sessions()
    async with hosts(sessions) as host, intrude(host.addresses[0]) as attacker:
        await attacker.send_all([churn(0, BURST), frame(PING, SYN, 0, 9)])
        answers = b""
        while frame(PING, ACK, 0, 9) not in answers:  # so many are allowed
            answers += b"".join(await attacker.receive())
        victim = await sessions.first()
        assert victim.session.violation is None
        with contextlib.suppress(ConnectionLost):
            for first in range(BURST, 20 * BURST, 64):
                await attacker.send_all([churn(first, 64)])
        await victim.ended.wait()
        assert victim.reason == victim.session.violation.reason == "stream-flood"


async def test_a_flood_of_pings_without_reading_ends_the_connection(
    hosts: Hosts, intrude: Intrude
) -> None:
    sessions = Sessions()
    async with hosts(sessions) as host, intrude(host.addresses[0]) as attacker:
        pings = frame(PING, SYN, 0, 1) * 5000
        with contextlib.suppress(ConnectionLost):
            while True:  # the answers fill the sockets first, then MAX_REPLY_BYTES
                await attacker.send_all([pings])
        victim = await sessions.first()
        await victim.ended.wait()
        assert victim.reason == "reply-flood"
        assert len(victim.session._replies) <= MAX_REPLY_BYTES


class Scripted:
    """A channel that sends nothing and has received what the test says."""

    def __init__(self, *received: list[bytes]) -> None:
        self._received, self.stream = list(received), self

    def keep_unsent(self, most_bytes: int) -> None: ...

    async def send_all(self, messages: object) -> None:
        await trio.sleep_forever()

    async def receive(self) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return self._received.pop(0) if self._received else []

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_one_reply_too_many_ends_the_session_and_nobody_who_replies() -> None:
    session = YamuxSession(cast(SecureChannel, Scripted()), dialler=True)
    stream = YamuxStream(session, 1)
    for _ in range(MAX_REPLY_BYTES // HEADER.size):
        session.ping()
    stream.send_eof()
    stream.reset()
    session.ping()
    assert len(session._replies) <= MAX_REPLY_BYTES
    with pytest.raises(RemoteProtocolError, match="reply-flood"):
        await session.run()


async def test_messages_with_nothing_in_them_are_counted() -> None:
    counted: list[tuple[int, int]] = []

    async def intake(size_bytes: int, frames: int) -> None:
        counted.append((size_bytes, frames))
        await trio.lowlevel.checkpoint()

    pings = frame(PING, ACK, 0) * 3
    channel = Scripted([b""] * 100, [pings], [pings, b""])
    session = YamuxSession(cast(SecureChannel, channel), dialler=True)
    session.intake = intake
    await session.run()
    assert counted == [(0, 100), (36, 3), (36, 3)]


@pytest.mark.parametrize(
    "quiet",
    [
        frame(WINDOW_UPDATE, 0, 77, 5),
        frame(DATA, 0, 77, 5) + b"abcde",
        frame(DATA, FIN, 77),
        frame(WINDOW_UPDATE, RST, 77),
        frame(PING, 2, 0, 5),
        frame(WINDOW_UPDATE, SYN, 1, 2**32 - 1) + frame(WINDOW_UPDATE, 0, 1, 2**32 - 1),
        frame(WINDOW_UPDATE, 0xFFF0, 77) + frame(DATA, 0xFFF0 | SYN, 1, 3) + b"abc",
        frame(PING, ACK, 0, 2**32 - 1) + frame(PING, ACK, 5, 0),  # answers to no question
    ],
)
async def test_harmless_frames_are_ignored(hosts: Hosts, intrude: Intrude, quiet: bytes) -> None:
    async with hosts() as host, intrude(host.addresses[0]) as attacker:
        await attacker.send_all([quiet + frame(PING, SYN, 0, 9)])
        answers = b""
        while not answers.endswith(frame(PING, 2, 0, 9)):
            answers += b"".join(await attacker.receive())


async def test_go_away_and_a_forged_message_end_it(hosts: Hosts, intrude: Intrude) -> None:
    sessions = Sessions()
    async with hosts(sessions) as host:
        async with intrude(host.addresses[0]) as attacker:
            await attacker.send_all([frame(GO_AWAY, 0, 0) + frame(WINDOW_UPDATE, SYN, 1)])
            await (await sessions.first()).ended.wait()
        assert sessions.opened[0].reason == "closed by the peer"
        assert not sessions.opened[0].by_peer, "whoever says so has not died"
        async with intrude(host.addresses[0]) as attacker:
            await attacker.stream.send_all([b"\x00\x20" + b"?" * 32])
            await until(lambda: len(sessions.opened) >= 2)
            await sessions.opened[1].ended.wait()
        assert sessions.opened[1].reason == "noise-tag"
        assert not host.refused


@pytest.fixture
async def pair(hosts: Hosts, nursery: trio.Nursery) -> Callable[[], object]:
    async def connect() -> Pair:
        ready = trio.Event()
        found: list[Pair] = []

        async def stay() -> None:
            sessions = Sessions()
            async with hosts(sessions) as a, hosts() as b:
                near = await dialled(b, a.addresses[0])
                found.append((near.session, (await sessions.first()).session))
                ready.set()
                await trio.sleep_forever()

        nursery.start_soon(stay)
        await ready.wait()
        return found[0]

    return connect


async def streams(connect: Callable[[], object]) -> tuple[YamuxStream, YamuxStream]:
    a, b = await connect()  # type: ignore[misc]
    near = await a.open_stream()
    return near, await b.accept_stream()


async def test_data_goes_both_ways_at_once_and_ends(pair: Callable[[], object]) -> None:
    near, far = await streams(pair)
    size = 3 * INITIAL_WINDOW_BYTES + 17
    received: dict[str, bytes] = {}

    async def send(stream: YamuxStream, fill: bytes) -> None:
        await stream.send_all([fill * 5, fill * (size - 5)])
        stream.send_eof()

    async def receive(stream: YamuxStream, name: str) -> None:
        data = bytearray()
        while more := await stream.receive_some():
            data += more
        received[name] = bytes(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, near, b"n")
        nursery.start_soon(send, far, b"f")
        nursery.start_soon(receive, near, "near")
        nursery.start_soon(receive, far, "far")
    assert received == {"near": b"f" * size, "far": b"n" * size}
    with pytest.raises(StreamReset):
        await near.send_all([b"after the end"])


async def taken(stream: YamuxStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := await stream.receive_some(size - len(data))):
        data += more
    return bytes(data)


async def test_a_writer_waits_for_its_reader_and_does_not_die(pair: Callable[[], object]) -> None:
    near, far = await streams(pair)
    with pytest.raises(trio.TooSlowError):
        await near.send_all([b"x" * (INITIAL_WINDOW_BYTES + 1)], stall_s=0.2)
    assert buffered(far) <= INITIAL_WINDOW_BYTES
    await until(lambda: buffered(far) >= INITIAL_WINDOW_BYTES)
    assert await taken(far, INITIAL_WINDOW_BYTES) == b"x" * INITIAL_WINDOW_BYTES
    await near.send_all([b"goes on"], stall_s=5)
    assert await far.receive_some() == b"goes on"


async def test_reset_wakes_both_sides(pair: Callable[[], object]) -> None:
    near, far = await streams(pair)
    async with trio.open_nursery() as nursery:

        async def wait_reset() -> None:
            with pytest.raises(StreamReset):
                await near.receive_some()

        nursery.start_soon(wait_reset)
        await trio.testing.wait_all_tasks_blocked()
        far.reset()
    with pytest.raises(StreamReset):
        await near.send_all([b"x"])


async def test_the_end_of_a_session_wakes_who_waits_on_a_stream(pair: Callable[[], object]) -> None:
    near, far = await streams(pair)
    with pytest.raises(trio.TooSlowError):
        await near.send_all([b"x" * (INITIAL_WINDOW_BYTES + 1)], stall_s=0.1)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:

            async def wait_end(wait: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises(ConnectionLost):
                    await wait()

            nursery.start_soon(wait_end, near.receive_some)
            nursery.start_soon(wait_end, partial(near.send_all, [b"x"]))
            await trio.testing.wait_all_tasks_blocked()
            await cast(YamuxSession, far._session).go_away()


async def test_streams_do_not_wait_for_each_other(pair: Callable[[], object]) -> None:
    a, b = await pair()  # type: ignore[misc]
    stuck = await a.open_stream()
    await b.accept_stream()  # and never read
    with pytest.raises(trio.TooSlowError):
        await stuck.send_all([b"x" * 10**6], stall_s=0.1)
    free = await a.open_stream()
    far = await b.accept_stream()
    await free.send_all([b"overtakes"], stall_s=5)
    assert await far.receive_some() == b"overtakes"
