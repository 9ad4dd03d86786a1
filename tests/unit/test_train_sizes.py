"""What a seat keeps of its siblings' tensors: nothing longer than its whole stage."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from protocol_examples import manifest, peer

from client.compute.payload import Header
from client.store.boundaries import BoundaryStore
from client.train.payloads import Payloads
from client.train.seat_driver import SeatDriver
from client.train.turnstile import Turnstile
from protocol.effects import Effect, Penalise
from protocol.pipeline.place import Place
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Reduced, Segment

ME, SIBLING = peer(0), peer(1)
SIZE, STEP = 300, 3


class Hub:
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


@pytest.mark.parametrize("codec", ["s8", "bf16", "fp32"])
@pytest.mark.parametrize("message", [Segment(1, STEP, 1, 0), Reduced(1, STEP, 1, 1, 0.5)])
def test_a_shard_longer_than_the_stage_is_not_kept(codec: str, message: Segment | Reduced) -> None:
    seat = Seat(Place(ME, 1, 2, 4), size=SIZE, steps=9, tokens_per_step=1, step=STEP, serving=True)
    hub, store = Hub(), BoundaryStore(2**20, 0)
    around: list[Any] = [Payloads(store), hub, SimpleNamespace(), None, Turnstile()]
    terms = manifest(averaging_codec=codec)
    driver = SeatDriver(seat, terms, cast(Any, SimpleNamespace(pid=0)), *around)
    ours = [Replica(ME, STEP, True), Replica(SIBLING, STEP, True)]
    driver.update_view(SwarmView.of([[], ours]))
    whole = Header(cast(Any, codec), "average", (SIZE,)).size_bytes
    driver.receive(SIBLING, message, bytes(whole + 1))
    assert store.statistics().entries == 0
    assert hub.blamed == [Penalise(SIBLING, "shard-of-wrong-size", 20)]
    driver.receive(SIBLING, message, bytes(whole))
    assert store.statistics().memory_bytes == whole
    assert len(hub.blamed) == 1
