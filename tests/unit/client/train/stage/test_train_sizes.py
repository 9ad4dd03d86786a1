"""Payloads that a seat accepts from others: no shard longer than its stage, no impossible
tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Never, cast

import pytest

from client.compute.payload import Header
from client.store.boundaries import BoundaryStore
from client.train.stage.seat_driver import SeatDriver
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.tokens import BEGINS, NOT_LEARNED
from protocol.audit.commitment import contents
from protocol.effects import Effect, Penalise
from protocol.limits import MAX_MICROBATCHES_PER_STEP, MAX_STEP
from protocol.pipeline.place import Place
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import AuditReply, Forward, Reduced, Segment
from tests.support.protocol_examples import manifest, peer
from tests.support.seat_context import seat_context

ME, SIBLING, UPSTREAM, DOWNSTREAM = (peer(number) for number in range(4))
SIZE, STEP = 300, 3


class Ports:
    """Remembers whom it is asked to blame."""

    def __init__(self) -> None:
        self.blamed: list[Penalise] = []

    def now(self) -> float:
        return 0.0

    def send(self, *_: object) -> None:
        pass

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, Penalise):
            self.blamed.append(effect)


def never(*_: object) -> Never:
    """Stand for what the owner of a seat is told: of these seats nothing."""
    raise AssertionError("the owner is told something")


def driver_of(ports: Ports, store: BoundaryStore, stages: int, **terms: Any) -> SeatDriver:
    """That of a seat of stage 1, whose view is still empty."""
    place = Place(ME, 1, stages, 4)
    seat = Seat(place, size=SIZE, steps=9, tokens_per_step=1, step=STEP, serving=True)
    worker: Any = SimpleNamespace(pid=0)
    owner = SimpleNamespace(seat_changed=never, fault=never, worker_lost=never, look=never)
    context = seat_context(ME, manifest(**terms), ports)
    driver = SeatDriver(context, owner, seat, worker, cast(Any, None))
    driver._payloads = store
    return driver


@pytest.mark.parametrize("codec", ["s8", "bf16", "fp32"])
@pytest.mark.parametrize("message", [Segment(1, STEP, 1, 0), Reduced(1, STEP, 1, 1, 0.5)])
def test_a_shard_longer_than_the_stage_is_not_kept(codec: str, message: Segment | Reduced) -> None:
    ports, store = Ports(), BoundaryStore(2**20, 0)
    driver = driver_of(ports, store, 2, averaging_codec=codec)
    ours = [Replica(ME, STEP, True), Replica(SIBLING, STEP, True)]
    driver.update_view(SwarmView.of([[], ours]))
    whole = Header(cast(Any, codec), "average", (SIZE,)).size_bytes
    driver.receive(SIBLING, message, bytes(whole + 1))
    assert store._memory_bytes == 0
    assert ports.blamed == [Penalise(SIBLING, "shard-of-wrong-size", 20)]
    driver.receive(SIBLING, message, bytes(whole))
    assert store._memory_bytes == whole
    assert len(ports.blamed) == 1


def test_a_token_outside_the_vocabulary_is_blamed_on_who_sent_it() -> None:
    """A stage in the middle has no use for tokens: passed on, they would be its own fault."""
    ports, store = Ports(), BoundaryStore(2**20, 0)
    driver, terms = driver_of(ports, store, 3), manifest()
    count = terms.sequences_per_microbatch * (terms.model.context + 1)
    highest = (terms.model.vocab - 1).to_bytes(2, "little")
    stages = [[Replica(each, STEP, True)] for each in (UPSTREAM, ME, DOWNSTREAM)]
    driver.update_view(SwarmView.of(stages))
    message = Forward(1, STEP + 1, 4 * (STEP + 1), 1, 2 * count, again=False)  # not run yet
    outside = highest * (count - 1) + terms.model.vocab.to_bytes(2, "little")
    driver.receive(UPSTREAM, message, outside + b"tensor")
    assert store._memory_bytes == 0
    assert ports.blamed == [Penalise(UPSTREAM, "malformed-forward", 20)]
    driver.receive(UPSTREAM, message, highest * count + b"tensor")
    assert store._memory_bytes == 2 * count + len(b"tensor")
    assert len(ports.blamed) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_borders_that_the_data_cannot_have_are_blamed_on_who_sent_them(packed: bool) -> None:
    terms = manifest()
    context, size = terms.model.context, 4 * (40 * terms.model.context + 1)
    answers = Answers(context, 100, True) if packed else Answers(context, 100)
    data = DataSpec("talk", size, "0" * 64, answers=answers)
    ports, store = Ports(), BoundaryStore(2**20, 0)
    driver = driver_of(ports, store, 3, data=data)
    stages = [[Replica(each, STEP, True)] for each in (UPSTREAM, ME, DOWNSTREAM)]
    driver.update_view(SwarmView.of(stages))
    count = terms.sequences_per_microbatch * (context + 1)
    message = Forward(1, STEP + 1, 4 * (STEP + 1), 1, 4 * count, again=False)
    learned, border = BEGINS.to_bytes(4, "little"), (BEGINS | NOT_LEARNED).to_bytes(4, "little")
    driver.receive(UPSTREAM, message, learned + bytes(4 * count - 4) + b"tensor")
    assert len(ports.blamed) == 1  # a border whose token is learned is never one
    driver.receive(UPSTREAM, message, border + bytes(4 * count - 4) + b"tensor")
    assert len(ports.blamed) == (1 if packed else 2)
    assert bool(store._memory_bytes) is packed


def longest_list(microbatches: int) -> bytes:
    """The list of one who has counted all of a late step, at a stage that shows most of each."""
    first = (MAX_STEP - 1) * microbatches
    digests = {first + m: (b"d" * 32,) * 5 for m in range(microbatches)}
    return contents(digests)


def test_the_longest_list_of_an_audit_is_taken_and_no_longer_one() -> None:
    ports, store = Ports(), BoundaryStore(2**20, 0)
    many = MAX_MICROBATCHES_PER_STEP
    driver = driver_of(ports, store, 3, microbatches_per_step=many, audit_percent=3)
    ours = [Replica(ME, STEP, True), Replica(SIBLING, STEP, True)]
    driver.update_view(SwarmView.of([[], ours, []]))
    shown = longest_list(many)
    driver.receive(SIBLING, AuditReply(1, STEP, 1, "list", 0), shown)
    assert not ports.blamed
    driver.receive(SIBLING, AuditReply(1, STEP, 1, "list", 0), shown + bytes(2**16))
    assert ports.blamed == [Penalise(SIBLING, "audit-of-wrong-size", 20)]
