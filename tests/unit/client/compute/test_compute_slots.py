"""The two slots of a replica with delayed updates: graphs, ledgers and checkpoints."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from client.cli.models.model_source import read_parameters
from client.compute.checkpoint import verify
from client.compute.errors import LedgerError
from client.compute.requests import (
    Apply,
    ApplyLocal,
    Backward,
    Contribute,
    Forward,
    ForwardBackward,
    Load,
    Save,
    Subtract,
)
from model_zoo.whole import load_whole
from tests.support.compute_stages import MODELS, LocalWorker, opened, relative_error, tokens_of
from tests.support.compute_steps import PER_STEP, apply_local, loss_of, of_step, step_of

STEPS = 5

# --- graphs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_graph_kept_over_an_update_gives_what_recomputing_after_it_gives(model: str) -> None:
    keeping, recomputing = (
        [opened(stage, [2, 2], model=model, delayed=True) for stage in range(2)] for _ in range(2)
    )
    for step in range(STEPS):
        now, following = PER_STEP * step, PER_STEP * (step + 1)
        for first, last in (keeping, recomputing):
            whole_pass(first, last, now)
        before = keeping[0].replica.slots[-1].flat.values.clone()
        boundary = forward(keeping[0], following, keep=True)
        for worker in (*keeping, *recomputing):
            apply_local(worker)
        assert torch.equal(keeping[0].replica.flat.values, before)
        assert not torch.equal(keeping[0].replica.slots[-1].flat.values, before)
        assert forward(recomputing[0], following, keep=False) == boundary
        sent = []
        for first, last in (keeping, recomputing):
            gradient = loss_of(last, following, boundary)[1][0]
            extra = [tokens_of(following)] * (first is recomputing[0])
            request = Backward(step=step + 1, microbatch=following)
            done, _ = first.call(request, gradient, *extra)
            assert done.recomputed == (first is recomputing[0])
            sent.append((gradient, first.replica.gradient_sum.clone()))
        assert sent[0][0] == sent[1][0]
        assert torch.equal(sent[0][1], sent[1][1])
        assert sent[0][1].any()
        for first, last in (keeping, recomputing):  # leave this step as it was
            request = Subtract(step=step + 1, microbatch=following)
            first.call(request, sent[0][0], tokens_of(following))
            request = Subtract(step=step + 1, microbatch=following, tokens=tokens_of(following))
            last.call(request, boundary)


def forward(worker: LocalWorker, microbatch: int, *, keep: bool = True) -> bytes:
    """Run the first stage; the boundary tensor."""
    step = step_of(microbatch)
    request = Forward(step=step, microbatch=microbatch, keep_graph=keep)
    reply, (boundary,) = worker.call(request, tokens_of(microbatch))
    assert reply.graph_kept == keep
    return boundary


def whole_pass(first: LocalWorker, last: LocalWorker, microbatch: int) -> tuple[bytes, bytes]:
    """A microbatch through two stages and back: the boundary tensor and its gradient."""
    boundary = forward(first, microbatch)
    gradient = loss_of(last, microbatch, boundary)[1][0]
    first.call(Backward(step=step_of(microbatch), microbatch=microbatch), gradient)
    return boundary, gradient


def test_an_update_frees_the_graphs_of_its_step_alone() -> None:
    worker = opened(0, [2, 2], graphs_kept=4, delayed=True)
    for microbatch in (0, 1, 6, 7):
        forward(worker, microbatch)
    full = Forward(step=1, microbatch=8)
    assert not worker.call(full, tokens_of(8))[0].graph_kept, "the budget is of both steps"
    apply_local(worker)
    assert [set(slot.graphs) for slot in worker.replica.slots] == [{6, 7}, set()]


def test_short_memory_gives_up_the_graphs_of_both_steps() -> None:
    worker = opened(0, [2, 2], delayed=True)
    for microbatch in (0, 6):
        forward(worker, microbatch)
    for slot in worker.replica.slots:
        slot.module.forward = out_of_memory
    failed = worker.fails(Forward(step=0, microbatch=1), tokens_of(1))
    assert failed.kind == "oom"
    assert not any(slot.graphs for slot in worker.replica.slots)


def out_of_memory(x: torch.Tensor, begins: torch.Tensor | None) -> torch.Tensor:
    raise MemoryError


# --- the ledger ----------------------------------------------------------------------------------


def test_microbatches_of_both_steps_can_be_taken_out_before_and_after_an_update() -> None:
    worker = opened(0, [4], delayed=True)
    for microbatch in (0, 6):
        loss_of(worker, microbatch)
    before = [slot.gradient_sum.clone() for slot in worker.replica.slots]
    for microbatch in (1, 7):
        loss_of(worker, microbatch)
        take_out(worker, microbatch)
    for slot, had in zip(worker.replica.slots, before, strict=True):
        assert relative_error(slot.gradient_sum, had) < 1e-6
    assert [slot.counted for slot in worker.replica.slots] == [{0}, {6}]
    loss_of(worker, 7)
    apply_local(worker)
    take_out(worker, 7)
    assert relative_error(worker.replica.gradient_sum, before[1]) < 1e-6
    assert [slot.counted for slot in worker.replica.slots] == [{6}, set()]


def take_out(worker: LocalWorker, microbatch: int) -> None:
    step = step_of(microbatch)
    worker.call(Subtract(step=step, microbatch=microbatch, tokens=tokens_of(microbatch)))


def test_a_microbatch_counts_once_in_its_step() -> None:
    worker = opened(0, [4], delayed=True)
    for microbatch in (0, 6):
        loss_of(worker, microbatch)
        assert fails(worker, ForwardBackward, microbatch, step_of(microbatch)) == "ledger"
        assert fails(worker, Subtract, microbatch, 1 - step_of(microbatch)) == "ledger"
    apply_local(worker)
    assert fails(worker, ForwardBackward, 6, 1) == "ledger"
    assert fails(worker, Subtract, 6, 2) == "ledger"


def fails(worker: LocalWorker, kind: Any, microbatch: int, step: int) -> str:
    request = kind(step=step, microbatch=microbatch, tokens=tokens_of(microbatch))
    return worker.fails(request).kind


def test_only_the_version_s_step_and_the_next_one_are_taken() -> None:
    worker = opened(0, [4], delayed=True)
    assert fails(worker, ForwardBackward, 12, 2) == "stale"
    for _ in range(2):
        apply_local(worker)
    for step in (0, 1, 4, 5):
        assert fails(worker, ForwardBackward, 0, step) == "stale"
        assert fails(worker, Subtract, 0, step) == "stale"
    inner = opened(0, [2, 2], delayed=True)
    assert inner.fails(Forward(step=2, microbatch=0), tokens_of(0)).kind == "stale"
    assert inner.fails(Backward(step=2, microbatch=0), b"", tokens_of(0)).kind == "stale"


def test_rounds_are_of_the_version_s_step_alone() -> None:
    worker = opened(0, [4], delayed=True)
    loss_of(worker, 6)
    bounds = [0, worker.replica.size]
    contribution = Contribute(step=1, attempt=0, bounds=bounds)
    assert worker.fails(contribution).kind == "stale"
    assert worker.fails(ApplyLocal(step=1, tokens=1)).kind == "stale"
    ours = msgspec.structs.replace(contribution, step=0)
    reply, (payload,) = worker.call(ours)
    assert reply.microbatches == []
    assert fails(worker, ForwardBackward, 6, 1) == "ledger"
    apply = Apply(step=1, attempt=0, bounds=bounds, squared_norms=[0.0], tokens=1)
    assert worker.fails(apply, payload).kind == "stale"


def test_without_it_there_is_no_work_ahead() -> None:
    worker = opened(0, [4])
    assert not worker.replica.delayed
    assert fails(worker, ForwardBackward, 6, 1) == "stale"


# --- checkpoints ---------------------------------------------------------------------------------


def advance(worker: LocalWorker, version: int) -> str:
    """Two microbatches of the present step, then the update."""
    step = worker.replica.version
    assert step == version
    counted = worker.replica.counted
    for microbatch in of_step(step)[:2]:
        if microbatch not in counted:
            loss_of(worker, microbatch)
    return apply_local(worker)


def test_a_replica_saved_amid_work_ahead_goes_on_elsewhere(tmp_path: Path) -> None:
    path, worker = tmp_path / "stage", opened(0, [4], delayed=True)
    for version in range(3):
        advance(worker, version)
    for microbatch in (of_step(3)[0], *of_step(4)[:2]):
        loss_of(worker, microbatch)
    saved, _ = worker.call(Save(version=3, path=str(path)))
    at_work = opened(0, [4], delayed=True)
    advance(at_work, 0)
    for microbatch in (of_step(1)[0], of_step(2)[0]):
        loss_of(at_work, microbatch)
    loaded, _ = at_work.call(Load(path=str(path), version=3, expected_hash=saved.hash))
    assert (loaded.version, loaded.hash) == (3, worker.replica.state_hash())
    assert at_work.replica.state_hash() == loaded.hash
    for slot in at_work.replica.slots:
        assert not slot.gradient_sum.any()
        assert not slot.counted
        assert not slot.graphs
    for version in range(3, 7):
        assert advance(worker, version) == advance(at_work, version)


def test_who_reads_a_model_from_checkpoints_gets_the_newest_parameters(tmp_path: Path) -> None:
    path, worker = tmp_path / "stage", opened(0, [4], delayed=True)
    for version in range(2):
        advance(worker, version)
    worker.call(Save(version=2, path=str(path)))
    state = read_parameters(path, verify(path))
    model = load_whole(MODELS["gpt"], state)
    own = worker.replica
    newest = {s.name: own.parameters[s.offset : s.offset + s.size] for s in own.flat.layout}
    assert state.keys() == newest.keys()  # not a point that a step is computed at
    for name, value in model.named_parameters():
        assert torch.equal(value.flatten(), newest[name]), name


def test_a_step_is_computed_as_far_ahead_as_the_last_update_went() -> None:
    worker = opened(0, [4], delayed=True)
    versions = [worker.replica.parameters.clone()] * 2
    for version in range(4):
        advance(worker, version)
        versions.append(worker.replica.parameters.clone())
        points = [slot.flat.values for slot in worker.replica.slots]
        for point, (before, newest) in zip(points, pairwise(versions[-3:]), strict=True):
            assert torch.equal(point, newest - before + newest)
        assert not torch.equal(versions[-1], versions[-2])


def test_a_state_with_another_point_is_another() -> None:
    """The points that the two steps are computed at are part of what is saved, hashed, loaded."""
    worker = opened(0, [4], delayed=True)
    for version in range(2):
        advance(worker, version)
    expected = worker.replica.state_hash()
    assert not torch.equal(*(slot.flat.values for slot in worker.replica.slots))
    for slot in worker.replica.slots:
        slot.flat.values[5] += 1e-3
        assert worker.replica.state_hash() != expected
        expected = worker.replica.state_hash()


@pytest.mark.parametrize(
    ("number", "within"),
    [(3.0, True), (-3.0, True), (3.1, False), (-3.1, False)]
    + [(float(word), False) for word in ("nan", "inf", "-inf")],
)
def test_one_gradient_beyond_a_bound_is_enough(number: float, within: bool) -> None:
    slot = opened(0, [4]).replica.slots[0]
    slot.zero_gradients()
    assert slot.gradients_within(0.0)
    slot.flat.gradients[17] = number
    assert slot.gradients_within(3.0) is within


def test_a_microbatch_counts_once_and_is_taken_out_once() -> None:
    slot = opened(0, [4]).replica.slots[0]
    slot.flat.gradients.fill_(2.0)
    slot.count(5)
    assert slot.counted == {5}
    assert slot.gradient_sum[0] == 2.0
    slot.check_counted(5, counted=True)
    slot.check_counted(6, counted=False)
    for microbatch, counted in ((5, False), (6, True)):
        with pytest.raises(LedgerError):
            slot.check_counted(microbatch, counted=counted)
    slot.take_out(5)
    assert not slot.counted
    assert not slot.gradient_sum.any()
