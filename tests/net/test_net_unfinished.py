"""Frames that are begun and not ended: how long they are waited for, and what they may hold.

A lane's reader takes turns with other tasks.
"""

import math
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from client.net.host import Connection
from client.net.links import Carrier, Common, Link
from client.net.pacing import Pacer
from client.net.unfinished import PATIENCE_S, UnfinishedFrames
from client.net.yamux import FLOOR_BYTES_PER_S, KEPT_BYTES, YamuxSession, YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.limits import MAX_PAYLOAD_BYTES, USUAL_PAYLOAD_BYTES
from protocol.relay.holding import Room
from protocol.wire.framing import encode_frame
from protocol.wire.messages import Goodbye, Message, encode_message
from tests.support.arrivals import backward, buffered
from tests.support.protocol_examples import peer


class Lane:
    """A carrier that reads one lane without a connection: the test is the peer."""

    def __init__(self, nursery: trio.Nursery, name: str) -> None:
        session = SimpleNamespace(
            closed=False,
            trip_s=0.1,
            budget=Room(0),
            reply=lambda frame: None,
        )
        self.stream = YamuxStream(cast(YamuxSession, session), 1)
        self.deliver_takes_s = 0.0
        """How long the rest of the client takes for each message."""
        self.delivered: list[bytes] = []
        """Payloads."""
        self.refused: RemoteProtocolError | None = None
        self.ended_at: float | None = None
        self.pacer = Pacer(0)
        common = Common(
            deliver=self._deliver,
            refused=lambda peer, error: None,
            changed=lambda link: None,
            request=_no_circuits,
            upload=self.pacer,
            download=self.pacer,
            unfinished=UnfinishedFrames(),
            hello_s=math.inf,
        )
        link = Link(peer(0), peer(1), common)
        self._carrier = Carrier(cast(Connection, SimpleNamespace()), link)
        nursery.start_soon(self._run, name)

    async def send(self, data: bytes) -> None:
        """Put it there and wait until it has been taken."""
        self.stream.on_data(memoryview(data))
        while buffered(self.stream) and self.refused is None:
            await trio.sleep(0.1)

    async def _deliver(self, link: Link, message: Message, payload: bytes) -> None:
        if self.deliver_takes_s:
            await trio.sleep(self.deliver_takes_s)
        self.delivered.append(payload)

    async def _run(self, name: str) -> None:
        try:
            await self._carrier._read_frames(name, self.stream)
        except RemoteProtocolError as error:
            self.refused, self.ended_at = error, trio.current_time()


async def _no_circuits(connection: Connection, stream: YamuxStream) -> None:
    """Nothing is asked of a relay."""


@pytest.fixture
def lane(nursery: trio.Nursery) -> Lane:
    return Lane(nursery, "bulk")


KIB = 1024


def wire(size: int) -> bytes:
    return b"".join(encode_frame(encode_message(backward(1)), bytes(size)))


@pytest.mark.parametrize("cut", [1, 7, 9, 30, 1000, -1])
async def test_a_frame_that_is_never_ended_is_given_up(
    lane: Lane, autojump_clock: MockClock, cut: int
) -> None:
    began = trio.current_time()
    await lane.send(wire(500 * KIB)[:cut])
    await trio.sleep(2 * PATIENCE_S)
    assert lane.refused.reason == "frame-too-slow"
    assert lane.ended_at == pytest.approx(began + PATIENCE_S, abs=1)


@pytest.mark.parametrize("rate", [1, FLOOR_BYTES_PER_S // 2])
async def test_nor_does_a_trickle_keep_it_alive(
    lane: Lane, autojump_clock: MockClock, rate: int
) -> None:
    data, began = wire(8192 * KIB), trio.current_time()
    await lane.send(data[: 4096 * KIB])  # a fast beginning gives no unlimited credit
    position = 4096 * KIB
    while lane.refused is None and trio.current_time() < began + 1000:
        await trio.sleep(1)
        lane.stream.on_data(memoryview(data[position : position + rate]))
        position += rate
    assert lane.refused is not None
    assert lane.ended_at - began < 2 * PATIENCE_S + 2


async def test_a_slow_line_with_pauses_is_waited_for(lane: Lane, autojump_clock: MockClock) -> None:
    data = wire(2048 * KIB)
    piece = 2 * FLOOR_BYTES_PER_S
    for number, start in enumerate(range(0, len(data), piece)):
        await trio.sleep(1 if number % 100 else PATIENCE_S - 5)
        await lane.send(data[start : start + piece])
    assert [len(payload) for payload in lane.delivered] == [2048 * KIB]


async def test_between_frames_it_waits_for_ever(lane: Lane, autojump_clock: MockClock) -> None:
    for _ in range(3):
        await trio.sleep(10_000)
        await lane.send(wire(5))
    assert len(lane.delivered) == 3


async def test_our_own_pacing_does_not_count(lane: Lane, autojump_clock: MockClock) -> None:
    lane.pacer.limit(1000)
    data = wire(1024 * KIB)
    for start in range(0, len(data), 64 * KIB):
        await lane.send(data[start : start + 64 * KIB])
        paced_s = 66 if start >= 256 * KIB else 0  # of what may be caught up nothing is left
        await trio.sleep(paced_s + 1)
    await trio.sleep(2000)
    assert lane.refused is None
    assert len(lane.delivered) == 1
    assert trio.current_time() > 10 * PATIENCE_S


async def test_nor_does_the_time_that_delivering_takes(
    lane: Lane, autojump_clock: MockClock
) -> None:
    lane.deliver_takes_s = 1000.0
    one = wire(100 * KIB)
    await lane.send(one + one[:1000])
    await trio.sleep(lane.deliver_takes_s + 1)
    await lane.send(one[1000:])
    await trio.sleep(3 * lane.deliver_takes_s)
    assert lane.refused is None
    assert len(lane.delivered) == 2


def test_over_the_budget_the_frame_begun_first_goes() -> None:
    evicted: list[str] = []
    lanes = UnfinishedFrames(budget_bytes=100)
    with (
        lanes.lane(lambda: evicted.append("a")) as a,
        lanes.lane(lambda: evicted.append("b")) as b,
        lanes.lane(lambda: evicted.append("c")) as c,
    ):
        a.took(40, completed=False, held_bytes=40)
        b.took(30, completed=False, held_bytes=30)
        c.took(30, completed=False, held_bytes=30)
        assert not evicted
        a.took(40, completed=True, held_bytes=40)  # it has ended one and begun another
        c.took(1, completed=False, held_bytes=31)
        assert evicted == ["b"]
        assert lanes.held_bytes == 71
        a.took(29, completed=False, held_bytes=69)
        assert evicted == ["b"]
        a.took(1, completed=False, held_bytes=70)
        assert evicted == ["b", "c"]
        assert lanes.held_bytes == 70
    assert lanes.held_bytes == 0


def test_what_has_ended_is_held_no_more() -> None:
    lanes = UnfinishedFrames(budget_bytes=100)
    with lanes.lane(lambda: pytest.fail("evicted")) as lane:
        for _ in range(10):
            lane.took(90, completed=False, held_bytes=90)
            lane.took(10, completed=True, held_bytes=0)
            assert lanes.held_bytes == 0


def test_of_the_largest_tensors_some_have_room_however_large_they_are() -> None:
    evicted: list[str] = []
    lanes, large = UnfinishedFrames(), 2**30
    assert lanes.payload_limit == USUAL_PAYLOAD_BYTES  # the run is not known yet
    lanes.expect(large, large)
    assert lanes.payload_limit == large
    with (
        lanes.lane(lambda: evicted.append("a")) as a,
        lanes.lane(lambda: evicted.append("b")) as b,
    ):
        for lane in (a, b):
            lane.took(large - 1, completed=False, held_bytes=large - 1)
        assert not evicted
    lanes.expect(2 * MAX_PAYLOAD_BYTES, large)
    assert lanes.payload_limit == MAX_PAYLOAD_BYTES


# --- between frames ------------------------------------------------------------------------------


async def test_other_tasks_run_while_a_reader_takes_what_lies_there() -> None:
    pieces, turns = 50, 0
    one = b"".join(encode_frame(encode_message(Goodbye("1"))))
    async with trio.open_nursery() as nursery:
        lane = Lane(nursery, "control")
        for _ in range(pieces):
            lane.stream.on_data(memoryview(one * (1 + KEPT_BYTES // len(one))))
        while buffered(lane.stream):
            turns += 1
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert turns >= pieces
