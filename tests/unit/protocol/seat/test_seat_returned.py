"""Whether the stage before has all gradients of a step: what counts."""

from __future__ import annotations

from protocol.pipeline.place import Place
from protocol.seat.returned import STEPS, ReturnedSteps
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Returned
from tests.support.protocol_examples import peer

ME, SIBLING, BEFORE, OTHER, THIRD = (peer(n) for n in range(1, 6))
PER_STEP, STEP = 4, 3


def view(*before: int, stage: int = 1) -> SwarmView:
    """The replicas of the stage before are at these versions."""
    there = [Replica(p, at, True) for p, at in zip((BEFORE, OTHER, THIRD), before, strict=False)]
    return SwarmView.of([*[there] * stage, [Replica(ME, STEP, True)]])


def steps(*told: int, stage: int = 1) -> ReturnedSteps:
    made = ReturnedSteps(Place(ME, stage, 3, PER_STEP))
    for step in told:
        made.told(Returned(stage, step), STEP)
    return made


class TestReturnedSteps:
    def test_one_replica_of_the_stage_before_tells(self) -> None:
        refused = steps(STEP - 1).has(view(STEP), STEP)
        assert refused.reason == "the stage before has not got all gradients of the step yet"
        assert steps(STEP).has(view(STEP), STEP)

    def test_most_have_closed_the_step(self) -> None:
        past = STEP + 1
        assert not steps().has(view(past, STEP), STEP), "half are not most"
        assert steps().has(view(past, past, STEP), STEP)

    def test_nobody_to_wait_for(self) -> None:
        assert steps().has(view(), STEP)
        assert steps(stage=0).has(view(stage=0), STEP), "the first stage has none before it"

    def test_what_came_early_counts_and_what_is_far_ahead_does_not(self) -> None:
        early = steps(STEP + STEPS - 1, STEP)
        assert early.has(view(STEP), STEP + STEPS - 1), "it implies the steps before"
        assert not early.has(view(STEP), STEP + STEPS)
        assert not steps(STEP + STEPS).has(view(STEP), STEP)
