"""Whether the stage before has all gradients of a step: how it is told, and what counts."""

from __future__ import annotations

from protocol.effects import Send
from protocol.pipeline.place import Place
from protocol.seat.returned import REPEAT_S, STEPS, ReturnedReporter, ReturnedSteps
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


def reporter(stage: int = 0) -> ReturnedReporter:
    return ReturnedReporter(Place(ME, stage, 2, PER_STEP))


def after(*versions: int) -> SwarmView:
    """The replicas of the next stage are at these versions."""
    there = [Replica(p, at, True) for p, at in zip((SIBLING, OTHER), versions, strict=False)]
    return SwarmView.of([[Replica(ME, STEP, True)], there])


class TestReturnedReporter:
    def test_each_replica_after_us_is_told_once_and_again_later(self) -> None:
        made, to = reporter(), after(STEP, STEP - 1)
        told = [Send(peer, Returned(1, STEP)) for peer in sorted((SIBLING, OTHER))]
        assert made.tell(to, STEP, 0.0, whole=True) == told
        assert made.due == REPEAT_S
        assert made.tell(to, STEP, REPEAT_S - 0.1, whole=True) == []
        assert made.tell(to, STEP, REPEAT_S, whole=True) == told, "it may have been lost"
        assert made.due == 2 * REPEAT_S

    def test_the_next_step_is_told_at_once(self) -> None:
        made = reporter()
        made.tell(after(STEP), STEP, 0.0, whole=True)
        assert len(made.tell(after(STEP), STEP + 1, 0.1, whole=True)) == 1

    def test_nothing_to_tell(self) -> None:
        assert reporter().tell(after(STEP), STEP, 0.0, whole=False) == []
        assert reporter().tell(after(STEP + 1), STEP, 0.0, whole=True) == [], "they have closed it"
        assert reporter(stage=1).tell(after(STEP), STEP, 0.0, whole=True) == [], "we are the last"
        assert reporter().due is None
