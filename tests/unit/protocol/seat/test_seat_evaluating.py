"""Held-out evaluation: which replicas are on a path, what they take from whom, when they stop."""

from types import SimpleNamespace
from typing import Any

import pytest

from protocol.ids import PeerId
from protocol.limits import MAX_HELD_OUT, MAX_PATHS
from protocol.manifest import Evaluation
from protocol.pipeline.effects import Keep, Outcome, PassTask, PayloadKey, SendPayload
from protocol.pipeline.place import Place
from protocol.seat.effects import HeldOutLoss
from protocol.seat.evaluating import Evaluating, on_path
from protocol.view import Replica, SwarmView
from protocol.wire.messages import HeldOut

TERMS = Evaluation(every=10, microbatches=2, tokens=8, size_bytes=16)
STAGES = (("a", "b", "c"), ("d", "e", "f"), ("g", "h"))
STEP, STEPS = 20, 25


def view(stages: tuple[tuple[str, ...], ...] = STAGES, **changes: Any) -> SwarmView:
    fields = {"version": STEP, "serving": True, **changes}
    return SwarmView.of([[Replica(PeerId(p), **fields) for p in peers] for peers in stages])


def replica(peer: str, step: int = STEP, terms: Evaluation | None = TERMS) -> Evaluating:
    stage = next(s for s, peers in enumerate(STAGES) if peer in peers)
    place, standing = Place(PeerId(peer), stage, len(STAGES), 8), SimpleNamespace(view=view())
    return Evaluating(place, standing, terms, step, lambda: STEPS)


def path(number: int, version: int = STEP) -> list[PeerId | None]:
    return [on_path(view(), stage, version, number) for stage in range(len(STAGES))]


def message(stage: int, item: int = 0, version: int = STEP) -> HeldOut:
    return HeldOut(stage, version, item)


def first_task(of: Evaluating) -> PassTask | None:
    found = of.work(may_begin=True, free=True)
    if not found:
        return None
    (effect,) = found
    assert isinstance(effect.task, PassTask)
    return effect.task


def test_no_replica_is_on_two_paths_and_there_are_as_many_as_the_smallest_stage_has() -> None:
    whole = [path(number) for number in range(MAX_PATHS) if None not in path(number)]
    assert len(whole) == 2
    assert all(len(set(of_stage)) == len(whole) for of_stage in zip(*whole, strict=True))

    assert len({tuple(path(0, version)) for version in range(0, 200, 10)}) > 3, "of each version"
    assert on_path(view(leaving=True), 0, STEP, 0) is None


def test_a_path_is_run_item_by_item_from_the_first_stage_to_a_number() -> None:
    first, second, third = (str(peer) for peer in path(1))
    one, two, three = replica(first), replica(second), replica(third)
    numbers = []
    for item in range(TERMS.microbatches):
        task = first_task(one)
        assert task == PassTask(STEP, -1 - item, "loss")
        assert one.work(may_begin=True, free=True) == [], "one at a time"
        (sent,) = one.computed(task, Outcome())
        assert sent == SendPayload(
            PeerId(second),
            message(1, item),
            (PayloadKey(STEP, "tokens", -1 - item), PayloadKey(STEP, "output", -1 - item)),
        )
        (kept,) = two.held_out(PeerId(first), message(1, item), 0.0)
        assert isinstance(kept, Keep)
        task = first_task(two)
        (sent,) = two.computed(task, Outcome())
        assert sent.peer == third
        assert three.held_out(PeerId(second), message(2, item), 0.0)
        task = first_task(three)
        numbers += three.computed(task, Outcome(loss_sum=4.0 * (item + 1)))
    assert numbers == [HeldOutLoss(STEP, 12.0 / TERMS.tokens)]


@pytest.mark.parametrize(
    ("step", "due"), [(20, True), (21, False), (0, True), (25, True), (24, False)]
)
def test_versions_are_evaluated_every_so_many_steps_and_at_the_end(step: int, due: bool) -> None:
    first = next(p for p in STAGES[0] if p == path(0, step)[0])
    assert (first_task(replica(first, step)) is not None) == due


def test_only_the_replica_before_us_on_the_path_is_heard() -> None:
    first, second, _ = (str(peer) for peer in path(0))
    other = str(path(1)[0])
    assert replica(second).held_out(PeerId(other), message(1), 0.0) == []
    assert replica(second).held_out(PeerId(first), message(1), 0.0) != []


def test_a_flood_of_items_costs_what_an_evaluation_costs() -> None:
    first, second, _ = (str(peer) for peer in path(0))
    flooded = replica(second)
    kept = [
        effect
        for version in range(STEP - 20, STEP + 40)
        for item in range(MAX_HELD_OUT)
        for _ in range(3)
        for effect in flooded.held_out(PeerId(first), message(1, item, version), 0.0)
    ]
    assert len(kept) == TERMS.microbatches


def test_what_comes_a_step_early_is_run_at_its_version() -> None:
    first, second, _ = (str(peer) for peer in path(0, STEP))
    late = replica(second, STEP - 1)
    assert late.held_out(PeerId(first), message(1), 0.0) != []
    assert first_task(late) is None
    late.start_step(STEP)
    assert first_task(late) == PassTask(STEP, -1, "loss")


def test_a_version_that_is_gone_is_given_up() -> None:
    one = replica(str(path(0)[0]))
    task = first_task(one)
    one.start_step(STEP + 1)
    assert one.computed(task, Outcome()) == []
    assert first_task(one) is None
    one.start_step(STEPS)
    late = [on_path(view(), 0, STEPS, number) for number in range(2)]
    assert (first_task(one) is not None) == (path(0)[0] in late), "the next one that is due"


def test_an_item_that_cannot_be_computed_ends_its_path() -> None:
    first, second, _ = (str(peer) for peer in path(0))
    two = replica(second)
    for item in range(TERMS.microbatches):
        two.held_out(PeerId(first), message(1, item), 0.0)
    task = first_task(two)
    assert two.computed(task, Outcome(error="stale")) == []
    assert first_task(two) is None


def test_a_path_whose_next_replica_is_gone_ends() -> None:
    one = replica(str(path(0)[0]))
    task = first_task(one)
    one._standing.view = view((STAGES[0], (), STAGES[2]))
    assert one.computed(task, Outcome()) == []
    assert first_task(one) is None
