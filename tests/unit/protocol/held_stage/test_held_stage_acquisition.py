"""Who counts where a stage begins: in the first lineage nobody waits for those that are gone."""

from __future__ import annotations

import pytest

from protocol.held_stage.acquisition import Begin, way_in
from protocol.ids import peer_id_from_key
from protocol.recovery.choice import SEED
from protocol.recovery.machine import SETTLE_S, Recovery, RecoveryContext
from protocol.recovery.stored import ERA_BITS, Lineage
from protocol.view import Replica, SwarmView

ME, OTHER = (peer_id_from_key(bytes([n]) * 32) for n in range(2))
LATER = Lineage(1 << ERA_BITS)


@pytest.mark.parametrize("lineage", [SEED, LATER])
@pytest.mark.parametrize("served", [None, 0, 1])
def test_it_begins_afresh_only_at_the_seed_and_if_nobody_serves(
    lineage: Lineage, served: int | None
) -> None:
    history = Recovery(ME, 2, 10, lineage)
    history.open = True
    history.update(RecoveryContext(frozenset({ME}), (None, None)), 0.0)
    ours, others = Replica(ME, 0, True), Replica(OTHER, 0, True)
    view = SwarmView.of([[ours, *([others] if served == 0 else [])], [others] if served else []])
    way = way_in(0, ME, view, history, SETTLE_S + 1)
    assert way == Begin(lineage, afresh=lineage == SEED and served is None)
