"""Local rounds of executors equal those of the reference, given who counted what in which order."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from client.lab.reference import Dealt, ReferenceRun, TrainingPlan, train_reference
from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.optimizer import OptimizerSpec
from protocol.pipeline.effects import ApplyTask, BackwardTask, ContributeTask, ForwardTask, LossTask
from tests.support.compute_rounds import bounds_of, decode_task, reduce_task
from tests.support.compute_stages import (
    MODELS,
    OPTIMIZER,
    SEED,
    SEQUENCES,
    TOKENS,
    LocalWorker,
    opened,
    relative_error,
)
from tests.support.compute_steps import PER_STEP, STEP_TOKENS, of_step

STEPS = 4
ROUNDS = [LocalRounds(2), LocalRounds(4, outer_lr=0.8, outer_momentum=0.5)]
Replicas = list[LocalWorker]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    tokens = np.random.default_rng(1).integers(61, size=20_000, dtype=np.uint8)
    return Corpus.from_tokens("corpus", tokens)


def dealt_to(count: int) -> Dealt:
    """Every step's microbatches in an order by chance, to replicas of which some are faster."""

    def of_replicas(step: int) -> Sequence[Sequence[int]]:
        chance = random.Random(step)
        counted: list[list[int]] = [[] for _ in range(count)]
        for microbatch in chance.sample(of_step(step), PER_STEP):
            chance.choice(counted).append(microbatch)
        return counted

    return of_replicas


def run(chain: Replicas, corpus: Corpus, step: int, microbatch: int) -> float:
    """A microbatch through the stages and back, with no other in flight; its loss."""
    *before, last = chain
    samples = corpus.sample(microbatch, SEQUENCES, TOKENS, SEED).astype("<u2").tobytes()
    passed = [samples]
    for worker in before:
        passed = worker.call(ForwardTask(step=step, microbatch=microbatch), *passed)[1]
    request = LossTask(step=step, microbatch=microbatch)
    reply, gradient = last.call(request, *(passed if before else ()), samples)
    for worker in reversed(before):
        gradient = worker.call(BackwardTask(step=step, microbatch=microbatch), *gradient)[1]
    return float(reply.loss_sum)


def average(replicas: Replicas, step: int) -> None:
    """The round of a stage, in which each owns a segment and checks those of the others."""
    bounds = bounds_of(replicas[0], len(replicas))
    counts = [len(worker.replica.counted) for worker in replicas]
    contribute = ContributeTask(step=step, attempt=0, bounds=bounds)
    sent = [worker.call(contribute)[1] for worker in replicas]
    sums, norms = [], []
    for owner, worker in enumerate(replicas):
        parts = [segments[owner] for member, segments in enumerate(sent) if member != owner]
        reduce = reduce_task(step=step, attempt=0, segment=owner, microbatches=counts, own=owner)
        reply, (total,) = worker.call(reduce, *parts)
        sums.append(total)
        norms.append(reply.sq_norm)
    apply = ApplyTask(step=step, attempt=0, bounds=bounds, sq_norms=norms)
    hashes = set()
    for worker in replicas:
        for segment, (total, norm) in enumerate(zip(sums, norms, strict=True)):
            decode = decode_task(step=step, attempt=0, segment=segment, squared_norm=norm)
            worker.call(decode, total)
        hashes.add(worker.call(apply, *sums)[0].hash)
    assert len(hashes) == 1


def assert_equal(stages: list[Replicas], losses: Sequence[float], expected: ReferenceRun) -> None:
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    for replicas in stages:
        own = replicas[0].replica
        for part in own.flat.layout:
            value = own.parameters[part.offset : part.offset + part.size].view(part.shape)
            assert relative_error(value, expected.state[part.name]) < 1e-3, part.name


@pytest.mark.parametrize("optimizer", [OPTIMIZER, replace(OPTIMIZER, name="muon")])
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("cut", "count"), [((4,), 1), ((4,), 3), ((2, 2), 1)])
def test_executors_follow_the_reference(
    cut: tuple[int, ...], count: int, rounds: LocalRounds, optimizer: OptimizerSpec, corpus: Corpus
) -> None:
    options = {"local_rounds": rounds, "optimizer": optimizer}
    stages = [[opened(stage, cut, **options) for _ in range(count)] for stage in range(len(cut))]
    dealt, losses = dealt_to(count), [0.0] * STEPS
    for step in range(STEPS):
        for *chain, counted in zip(*stages, dealt(step), strict=True):
            for microbatch in counted:
                losses[step] += run(chain, corpus, step, microbatch) / STEP_TOKENS
        for replicas in stages:
            average(replicas, step)
    plan = TrainingPlan(
        MODELS["gpt"], cut, optimizer, SEED, STEPS, PER_STEP, SEQUENCES, local_rounds=rounds
    )
    expected = train_reference(plan, corpus, dealt=dealt)
    assert_equal(stages, losses, expected)
    in_order = train_reference(plan, corpus)
    assert in_order.losses != pytest.approx(expected.losses, rel=1e-4)
