"""Chunks are served one after the other to each asker; no payload is larger than is expected."""

import itertools
from collections import Counter
from typing import cast

import msgspec
import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from client.compute.payload import Encoding
from client.config import GIB
from client.net.libp2p_network import Libp2pNetwork
from client.train.transfer.chunks import MAX_ASKED, PLACES, ChunkServer
from client.train.transfer.state_size import (
    largest_payload,
    round_bytes,
    transit_disk_bytes,
    usual_payload,
)
from model_zoo.specs.slices import stage_parameters
from protocol.audit.commitment import contents
from protocol.ids import PeerId
from protocol.limits import CHUNK_BYTES, MAX_MICROBATCHES_PER_STEP, MAX_PAYLOAD_BYTES
from protocol.manifest import Manifest
from protocol.rounds.shards import segmented, shard_bounds
from protocol.wire.messages import ChunkRequest
from tests.support.protocol_examples import peer
from tests.support.recording_ports import RecordingPorts
from tests.support.saved_swarms import founded


class Lines(RecordingPorts):
    """A network whose peers take bytes at their own rate, and the ports before it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = nursery
        self.rate_bytes_per_s: dict[PeerId, float] = {}
        self.unsent: Counter[PeerId] = Counter()
        self.served: list[tuple[PeerId, int]] = []
        self.cut: list[PeerId] = []
        self.most_in_memory = 0
        self.strangers = set[PeerId]()
        self.server = ChunkServer(
            self,
            cast(Libp2pNetwork, self),
            nursery,
            self.answer,
            self.strangers.__contains__,
        )

    def asks(self, asker: PeerId, count: int) -> None:
        """Ask for the first chunks."""
        for index in range(count):
            self.server.ask(asker, request(index))

    def given(self, asker: PeerId) -> list[int]:
        """The chunks that a peer was served."""
        return [index for whose, index in self.served if whose == asker]

    async def answer(self, asker: PeerId, request: ChunkRequest) -> None:
        await trio.lowlevel.checkpoint()
        self.served.append((asker, request.index))
        self.unsent[asker] += CHUNK_BYTES
        self.most_in_memory = max(self.most_in_memory, self.unsent.total())
        self._nursery.start_soon(self._take, asker)

    async def _take(self, asker: PeerId) -> None:
        while self.unsent[asker] > 0 and asker not in self.cut:
            await trio.sleep(1.0)
            rate = self.rate_bytes_per_s.get(asker, 10e6)
            self.unsent[asker] = max(0, int(self.unsent[asker] - rate))

    def unsent_bytes(self, asker: PeerId, lane: str) -> int:
        return self.unsent[asker]

    async def wait_sent(self, asker: PeerId, lane: str) -> None:
        while self.unsent[asker] and asker not in self.cut:
            await trio.sleep(0.25)

    async def disconnect(self, asker: PeerId, reason: str) -> None:
        await trio.lowlevel.checkpoint()
        self.cut.append(asker)
        self.unsent[asker] = 0
        self.server.gone(asker)


def request(index: int) -> ChunkRequest:
    return ChunkRequest(bytes(32), index)


async def test_five_hundred_requests_read_one_chunk_at_a_time(nursery: trio.Nursery) -> None:
    lines = Lines(nursery)
    lines.rate_bytes_per_s[peer(1)] = 0.1
    lines.asks(peer(1), 500)
    await trio.sleep(100)
    assert lines.most_in_memory == CHUNK_BYTES
    assert len(lines.done) == 500 - MAX_ASKED


async def test_each_is_served_in_order_and_once(nursery: trio.Nursery) -> None:
    lines = Lines(nursery)
    for index in (3, 1, 3, 2, 1):
        lines.server.ask(peer(1), request(index))
        lines.server.ask(peer(2), request(index))
    await trio.sleep(20)
    for asker in (peer(1), peer(2)):
        assert lines.given(asker) == [3, 1, 2]
    lines.server.ask(peer(1), request(3))  # it was lost on the way
    await trio.sleep(2)
    assert lines.served[-1] == (peer(1), 3)


@pytest.mark.parametrize("rate", [0.1, 20_000.0])
async def test_slow_readers_do_not_keep_others_from_their_state(
    nursery: trio.Nursery, rate: float
) -> None:
    lines = Lines(nursery)
    slow = [peer(number) for number in range(10, 10 + 3 * PLACES)]
    for asker in slow:
        lines.rate_bytes_per_s[asker] = rate
        lines.asks(asker, 10)
    await trio.sleep(1)
    honest = peer(1)
    lines.asks(honest, 10)
    await trio.sleep(200)
    assert lines.given(honest) == list(range(10))
    assert honest not in lines.cut
    assert lines.most_in_memory <= PLACES * CHUNK_BYTES


async def test_strangers_that_read_slowly_keep_no_member_waiting(nursery: trio.Nursery) -> None:
    """None of them is so slow that it loses its link."""
    lines = Lines(nursery)
    lines.strangers.update(peer(number) for number in range(10, 10 + 4 * PLACES))
    for asker in lines.strangers:
        lines.rate_bytes_per_s[asker] = 40_000.0
        lines.asks(asker, 10)
    await trio.sleep(1)
    lines.asks(peer(1), 10)
    await trio.sleep(20)
    assert lines.given(peer(1)) == list(range(10))
    assert not lines.cut


async def test_a_slow_line_is_served_while_there_is_room(nursery: trio.Nursery) -> None:
    lines = Lines(nursery)
    lines.rate_bytes_per_s[peer(1)] = 8_000.0
    lines.asks(peer(1), 3)
    await trio.sleep(2000)
    assert len(lines.served) == 3
    assert not lines.cut


async def test_nothing_is_read_for_a_link_that_has_ended(nursery: trio.Nursery) -> None:
    lines = Lines(nursery)
    lines.asks(peer(1), 10)
    await wait_all_tasks_blocked()
    lines.server.gone(peer(1))
    await trio.sleep(50)
    assert len(lines.served) == 1


async def test_links_may_end_while_their_requests_wait_for_a_place(nursery: trio.Nursery) -> None:
    lines = Lines(nursery)
    for number in range(2 * PLACES):
        lines.rate_bytes_per_s[peer(number)] = 100_000.0
        lines.asks(peer(number), 3)
    await trio.sleep(1)
    first = {whose for whose, _ in lines.served}
    waiting = {peer(number) for number in range(2 * PLACES)} - first
    assert len(first) == PLACES // 2
    for whose in waiting:
        lines.server.gone(whose)
    await trio.sleep(500)
    assert {whose for whose, _ in lines.served} == first
    back = min(waiting)
    lines.server.ask(back, request(7))
    await trio.sleep(1)
    assert lines.served[-1] == (back, 7)


# --- the sizes of payloads --------------------------------------------------------------------


def manifest(width: int, sequences: int) -> Manifest:
    shape = {"layers": 4, "width": width, "heads": 2, "context": 64}
    return founded(stages=2, sequences=sequences, redundancy=2, **shape).manifest


@pytest.mark.parametrize(("width", "sequences"), [(32, 1), (32, 64), (512, 2)])
def test_everything_honest_fits(width: int, sequences: int) -> None:
    ours = manifest(width, sequences)
    shape = ours.sequences_per_microbatch, ours.model.context, ours.model.width
    tokens = 2 * 8 * ours.sequences_per_microbatch * (ours.model.context + 1)
    for codec in ("s8", "bf16", "fp32"):
        assert Encoding(codec, "forward", shape).size_bytes + tokens <= usual_payload(ours)
    for stage in range(2):
        size = stage_parameters(ours.model, ours.layers_per_stage, stage)
        assert Encoding("fp32", "forward", (size,)).size_bytes <= largest_payload(ours)
        for owns in ([True] * 2, [True] * 5, [False, True]):
            bounds = segmented(shard_bounds(size, owns))
            most = max(b - a for a, b in itertools.pairwise(bounds))
            assert Encoding("fp32", "forward", (most,)).size_bytes <= usual_payload(ours)
    assert usual_payload(ours) <= largest_payload(ours)
    assert largest_payload(ours) >= CHUNK_BYTES


def test_half_of_what_is_in_transit_holds_a_round_of_the_largest_stage() -> None:
    small = manifest(32, 1)
    stages = [replace(stage, layers=16) for stage in small.stages]
    wide = replace(small.model, width=4096, ffn_width=16384, layers=32)
    large = replace(small, model=wide, stages=stages, averaging_codec="fp32")
    assert round_bytes(large) > 3 * GIB
    assert transit_disk_bytes(large) >= 2 * round_bytes(large)
    assert transit_disk_bytes(small) == 4 * GIB


def test_a_small_run_takes_no_large_frames() -> None:
    assert largest_payload(manifest(32, 1)) < MAX_PAYLOAD_BYTES // 16


def test_the_list_of_an_audit_fits_of_a_step_of_many_microbatches() -> None:
    count = MAX_MICROBATCHES_PER_STEP
    digests = {2**40 + m: (b"d" * 32,) * 5 for m in range(count)}
    shown = contents(digests)
    ours = msgspec.structs.replace(manifest(32, 1), microbatches_per_step=count)
    assert len(shown) > largest_payload(ours)  # no audits, no list
    assert len(shown) <= largest_payload(msgspec.structs.replace(ours, audit_percent=3))
