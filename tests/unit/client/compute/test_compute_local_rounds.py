"""Local rounds: inner steps between two versions, and what a replica contributes of them."""

from pathlib import Path

import pytest
import torch

from client.compute.requests import Load, Save
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.optimizer import OptimizerSpec
from protocol.pipeline.effects import ApplyTask, BackwardTask, ForwardTask, LossTask, PassTask
from tests.support.compute_rounds import bounds_of, close_round, contribute_and_reduce
from tests.support.compute_stages import (
    SEQUENCES,
    TOKENS,
    LocalWorker,
    open_request,
    opened,
    relative_error,
    tokens_of,
)

TOKENS_OF_ONE = SEQUENCES * TOKENS
LOCAL = LocalRounds(2)
MUON = OptimizerSpec(
    lr=1e-2, min_lr=1e-2, warmup_steps=0, decay_steps=50, clip=0, name="muon", weight_decay=0.1
)


def train(worker: LocalWorker, step: int, *microbatches: int) -> None:
    for number in microbatches:
        worker.call(LossTask(step, number), tokens_of(number))


def weights(worker: LocalWorker) -> torch.Tensor:
    found: torch.Tensor = worker.replica.flat.values
    return found


def test_an_unfinished_inner_step_goes_as_much_less_far() -> None:
    spec = OptimizerSpec(
        lr=1e-2, min_lr=1e-2, warmup_steps=0, decay_steps=9, weight_decay=0, clip=0, name="sgd"
    )
    moved = []
    for inner in (1, 4):
        worker = opened(0, [4], optimizer=spec, local_rounds=LocalRounds(inner), microbatches=1)
        before = weights(worker).clone()
        train(worker, 0, 7)
        worker.call(ApplyTask(step=0))
        moved.append(weights(worker) - before)
    assert relative_error(4 * moved[1], moved[0]) < 1e-3


def test_nothing_is_lost_of_what_a_coarse_codec_leaves() -> None:
    """What encoding takes from a round comes with the next ones: the sum over rounds is exact."""
    local = LocalRounds(1)
    workers = [opened(0, [4], averaging="s8", local_rounds=local, microbatches=2) for _ in range(2)]
    start, total = workers[0].replica.parameters.clone(), 0.0
    for step in range(6):
        base = workers[0].replica.parameters.clone()
        for index, worker in enumerate(workers):
            train(worker, step, 10 * step + index)
            assert torch.equal(worker.replica.parameters, base), "a version stays"
            total += (base - weights(worker)) / 2
        assert len({reply.hash for reply in close_round(workers, step, stretched=False)}) == 1
        for worker in workers:
            assert torch.equal(weights(worker), workers[0].replica.parameters)
    owed = sum(worker.residual for worker in workers)
    came = start - workers[0].replica.parameters + owed / (2 * TOKENS_OF_ONE)
    assert relative_error(came, total) < 1e-4


@pytest.mark.parametrize(("same", "further"), [(True, 1.0), (False, 1.5)])
def test_a_version_goes_as_far_as_a_replica_and_not_as_their_mean(
    same: bool, further: float
) -> None:
    """What they do not share cancels in the mean; of four, up to a half more is made up for."""
    local = LocalRounds(1)
    workers = [opened(0, [4], local_rounds=local, microbatches=4) for _ in range(4)]
    base, mean = workers[0].replica.parameters.clone(), 0.0
    for index, worker in enumerate(workers):
        train(worker, 0, 0 if same else index)
        mean += (base - weights(worker)) / len(workers)
    close_round(workers, 0)
    came = base - workers[0].replica.parameters
    assert float(came.norm() / mean.norm()) == pytest.approx(further, rel=0.01)
    assert relative_error(came / further, mean) < 1e-2


def test_what_another_counts_weighs_no_more() -> None:
    """A doubled microbatch has moved the weights: the difference stays, and weighs one less."""
    worker = opened(0, [4], local_rounds=LocalRounds(1))
    before = weights(worker).clone()
    train(worker, 0, 0, 1, 2, 3)
    moved = before - weights(worker)
    worker.call(PassTask(into="less", step=0, microbatch=2), tokens_of(2))
    assert worker.replica.counted == {0, 1, 3}
    given = worker.replica.contribution(0, worker.replica.size)
    assert relative_error(given, 3 * TOKENS_OF_ONE * moved) < 1e-5
    assert worker.fails(PassTask(into="less", step=0, microbatch=2), tokens_of(2)).kind == "ledger"
    train(worker, 0, 2)
    assert worker.replica.counted == {0, 1, 2, 3}


def test_another_attempt_contributes_the_same() -> None:
    workers = [opened(0, [4], averaging="s8", local_rounds=LocalRounds(4)) for _ in range(2)]
    for index, worker in enumerate(workers):
        train(worker, 0, index)  # fewer than an inner step takes
    bounds = bounds_of(workers[0], 2)
    first = contribute_and_reduce(workers, 0, 0, bounds, [0, 1])
    assert contribute_and_reduce(workers, 0, 1, bounds, [0, 1]) == first


def test_an_inner_step_drops_the_graphs_and_their_passes_are_run_again() -> None:
    """The gradient is that of the weights as they are, at the input as it came."""
    worker = opened(0, [2, 2], local_rounds=LocalRounds(1))
    last = opened(1, [2, 2], local_rounds=LocalRounds(1))
    boundary = {}
    for number in (0, 1):
        _, (boundary[number],) = worker.call(
            ForwardTask(step=0, microbatch=number), tokens_of(number)
        )
    _, (gradient,) = last.call(LossTask(0, 0), boundary[0], tokens_of(0))
    worker.call(BackwardTask(step=0, microbatch=0), gradient)
    assert worker.replica.graphs == {}
    assert worker.fails(BackwardTask(step=0, microbatch=1), gradient).kind == "graph"
    worker.call(BackwardTask(step=0, microbatch=1), gradient, tokens_of(1))
    assert worker.replica.counted == {0, 1}
    assert worker.replica._version_stage is None  # it may take as much memory as the weights
    _, (of_version,) = worker.call(PassTask(step=0, microbatch=0, into="loss"), tokens_of(0))
    assert of_version == boundary[0]


def test_a_version_is_evaluated_at_its_own_parameters() -> None:
    worker, plain = opened(0, [4], local_rounds=LocalRounds(1)), opened(0, [4])
    request = PassTask(into="loss", step=0, microbatch=-1)
    expected = plain.call(request, tokens_of(5))[0].loss_sum
    train(worker, 0, 0, 1)
    assert worker.call(request, tokens_of(5))[0].loss_sum == expected
    worker.call(ApplyTask(step=0))
    later = worker.call(PassTask(into="loss", step=1, microbatch=-1), tokens_of(5))[0].loss_sum
    assert later != expected


def test_a_newcomer_has_the_version_and_no_moments(tmp_path: Path) -> None:
    worker, path = opened(0, [4], local_rounds=LOCAL), tmp_path / "stage"
    train(worker, 0, 0, 1, 2, 3)
    worker.call(ApplyTask(step=0))
    train(worker, 1, 4, 5, 6)
    saved, _ = worker.call(Save(version=1, path=str(path)))
    newcomer = opened(0, [4], local_rounds=LOCAL)
    train(newcomer, 0, 0, 1, 2)
    newcomer.call(Load(path=str(path), version=1, expected_hash=saved.hash))
    assert torch.equal(newcomer.replica.parameters, worker.replica.parameters)
    assert torch.equal(weights(newcomer), newcomer.replica.parameters)
    replica = newcomer.replica
    assert not any(vector.any() for vector in replica.inner.vectors)
    assert (replica.inner.steps_done, replica.waiting) == (0, 0)
    assert not newcomer.replica.gradient_sum.any()
    assert newcomer.replica.counted == set()


def test_a_contribution_that_is_not_in_the_sum_is_forgotten() -> None:
    """Its microbatches are counted elsewhere: the next round begins at the version."""
    workers = [opened(0, [4], averaging="s8", local_rounds=LocalRounds(1)) for _ in range(2)]
    for worker in workers:
        train(worker, 0, 0)
    bounds = bounds_of(workers[0], 1)
    sums, norms = contribute_and_reduce(workers[:1], 0, 0, bounds, [0])
    request = ApplyTask(step=0, attempt=0, bounds=bounds, sq_norms=norms)
    hashes = {worker.call(request, *sums)[0].hash for worker in workers}
    assert len(hashes) == 1
    assert torch.equal(weights(workers[1]), workers[0].replica.parameters)
    assert not workers[1].residual.any()


def moved_by(worker: LocalWorker, step: int) -> float:
    train(worker, step, step)
    return float((weights(worker) - worker.replica.parameters).norm())


def test_a_rate_by_an_amendment_holds_for_the_inner_steps(tmp_path: Path) -> None:
    path, moved = tmp_path / "stage", []
    for rate in (None, 1e-4):
        worker = opened(0, [4], optimizer=MUON, local_rounds=LocalRounds(1))
        train(worker, 0, 0)
        worker.call(ApplyTask(step=0, rate=rate))
        worker.call(Save(version=1, path=str(path)))
        moved.append(moved_by(worker, 1))
        worker.call(Load(path=str(path), version=1, learning_rate=rate))
        moved.append(moved_by(worker, 1))
    assert moved[2] == pytest.approx(moved[0] / 100, rel=0.05)
    assert moved[3] == pytest.approx(moved[1] / 100, rel=0.05)


@pytest.mark.parametrize("lie", [-1.0, 10.0, 0.0])
def test_of_two_neither_goes_further_than_the_other_or_a_usual_round(lie: float) -> None:
    """Two have no majority: a lie of an absurd size is cut down, and silence does not stop it."""
    local = LocalRounds(1)
    workers = [
        opened(
            *(0, [4]),
            optimizer=MUON,
            local_rounds=local,
            aggregation="centred-clipping",
            microbatches=8,
        )
        for _ in range(2)
    ]
    base = weights(workers[0]).clone()
    for index, worker in enumerate(workers):
        train(worker, 0, *range(10 * index, 10 * index + 4))
    honest = base - weights(workers[0])
    weights(workers[1]).copy_(base - lie * honest)
    close_round(workers, 0)
    went = base - workers[0].replica.parameters
    assert float(went.norm()) <= 1.1 * float(honest.norm())
    if lie >= 0:
        assert float(went @ honest) > 0.2 * float(honest @ honest)


def test_each_of_several_devices_would_train_alone() -> None:
    worker = LocalWorker()
    failed = worker.fails(open_request(0, [4], local_rounds=LOCAL, device="cpu:0,cpu:1"))
    assert failed.kind == "shape"
    assert "a volunteer for each" in failed.message
