"""A replica's memory of closed steps is bounded, for any view of the neighbouring stages."""

import pytest

from protocol.pipeline.effects import DropStep
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Forward
from tests.support.protocol_examples import peer

ME, BEFORE, AFTER = peer(1), peer(2), peer(3)
PER_STEP, STEPS = 4, 20


def view(step: int, before: int | None, after: int | None) -> SwarmView:
    """Return what is seen at a step of the stages beside ours; None: nobody is there."""
    said = ((BEFORE, before), (ME, step), (AFTER, after))
    return SwarmView.of([[Replica(p, v, True)] if v is not None else [] for p, v in said])


@pytest.mark.parametrize("unseen", ["before", "after", "both", "left behind"])
def test_steps_are_dropped_though_a_stage_beside_ours_is_out_of_sight(unseen: str) -> None:
    """We have set all of it aside, and our siblings go on with it."""
    made = Pipeline(Place(ME, 1, 3, PER_STEP), 0)
    dropped: list[int] = []
    for step in range(STEPS):
        before = None if unseen in ("before", "both") else step
        after = None if unseen in ("after", "both") else 0 if unseen == "left behind" else step
        effects = made.update_view(view(step, before, after), float(step))
        dropped += [effect.step for effect in effects if isinstance(effect, DropStep)]
        for microbatch in range(step * PER_STEP, (step + 1) * PER_STEP):
            message = Forward(1, step, microbatch, 1, again=False)
            made.forward(BEFORE, message, b"", float(step))
        assert len(made._microbatches) <= 2 * PER_STEP
        made.start_step(step + 1, float(step))
    assert dropped == list(range(STEPS - 2))


@pytest.mark.parametrize("lag", [0, 1])
def test_what_a_stage_beside_ours_has_yet_to_close_is_kept(lag: int) -> None:
    made = Pipeline(Place(ME, 1, 3, PER_STEP), 11)
    made.step = 12
    effects = made.update_view(view(12, 12 - lag, 12), 0.0)
    assert [e.step for e in effects if isinstance(e, DropStep)] == [11][lag:]
