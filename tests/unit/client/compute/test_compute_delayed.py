"""The one-step-delayed update: work ahead of the step, whenever it is done, changes no bit."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from client.compute.requests import (
    Apply,
    Backward,
    Contribute,
    Forward,
    ForwardBackward,
    Reduce,
)
from model_zoo.data import Corpus
from model_zoo.reference import ReferenceRun, TrainingPlan, train_reference
from tests.support.compute_stages import (
    MODELS,
    SEED,
    SEQUENCES,
    TOKENS,
    LocalWorker,
    opened,
    optimizer_config,
    relative_error,
)
from tests.support.compute_steps import PER_STEP, STEP_TOKENS, loss_of, of_step, step_of

STEPS = 5


def run_round(workers: list[LocalWorker], meanwhile: Callable[[], None] = lambda: None) -> str:
    """A round of the workers, each owning a segment; other work is done before every request."""
    step, count = workers[0].replica.version, len(workers)
    size = workers[0].replica.size
    bounds = [size * member // count for member in range(count + 1)]
    sent, sums, norms, hashes = [], [], [], set()
    for worker in workers:
        meanwhile()
        sent.append(worker.call(Contribute(step=step, attempt=0, bounds=bounds))[1])
    for owner, worker in enumerate(workers):
        meanwhile()
        request = Reduce(step=step, attempt=0, segment=owner, microbatches=[1] * count, own=owner)
        others = [parts[owner] for member, parts in enumerate(sent) if member != owner]
        reply, (payload,) = worker.call(request, *others)
        sums.append(payload)
        norms.append(reply.squared_norm)
    for worker in workers:
        meanwhile()
        reply, _ = worker.call(
            Apply(step=step, attempt=0, bounds=bounds, squared_norms=norms, tokens=STEP_TOKENS),
            *sums,
        )
        hashes.add(reply.hash)
    (digest,) = hashes
    return str(digest)


def of_member(member: int, count: int, step: int) -> list[int]:
    return [m for m in of_step(step) if m % count == member]


def trained_in_order(count: int, codec: Any) -> tuple[list[str], list[LocalWorker]]:
    """Everything of a step before its round, nothing ahead: the hashes of the versions."""
    workers = [opened(0, [4], averaging=codec, delayed=True) for _ in range(count)]
    hashes = []
    for step in range(STEPS):
        for member, worker in enumerate(workers):
            for microbatch in of_member(member, count, step):
                loss_of(worker, microbatch)
        hashes.append(run_round(workers))
    return hashes, workers


def trained_ahead(
    count: int, codec: Any, seed: int, *, shuffled: bool
) -> tuple[list[str], list[LocalWorker], int]:
    """As much as chance wills of the step after is done before, between and after the requests of
    a round; also how many microbatches were ahead of the version they were run at."""
    chance = random.Random(seed)
    workers = [opened(0, [4], averaging=codec, delayed=True) for _ in range(count)]
    left = [
        [m for step in range(STEPS) for m in of_member(member, count, step)]
        for member in range(count)
    ]
    if shuffled:
        for queue in left:
            order = {m: chance.random() for m in queue}
            queue.sort(key=lambda m: (step_of(m), order[m]))
    ahead = 0

    def work_ahead() -> None:
        nonlocal ahead
        for worker, queue in zip(workers, left, strict=True):
            if queue and step_of(queue[0]) <= worker.replica.version + 1 and chance.random() < 0.4:
                ahead += step_of(queue[0]) > worker.replica.version
                loss_of(worker, queue.pop(0))

    hashes = []
    for step in range(STEPS):
        for worker, queue in zip(workers, left, strict=True):
            while queue and step_of(queue[0]) <= step:
                loss_of(worker, queue.pop(0))
        work_ahead()
        hashes.append(run_round(workers, work_ahead))
    assert not any(left)
    return hashes, workers, ahead


@pytest.mark.parametrize("codec", ["fp32", "s8"])
@pytest.mark.parametrize("count", [2, 3])
def test_work_ahead_changes_no_bit(codec: str, count: int) -> None:
    expected, _ = trained_in_order(count, codec)
    assert len(set(expected)) == STEPS
    for seed in range(3):
        hashes, _, ahead = trained_ahead(count, codec, seed, shuffled=False)
        assert ahead > STEPS
        assert hashes == expected


def test_in_another_order_only_roundings_differ() -> None:
    _, (plain, _) = trained_in_order(2, "fp32")
    for seed in range(3):
        _, workers, _ = trained_ahead(2, "fp32", seed, shuffled=True)
        pairs = zip(workers[0].replica.state_tensors, plain.replica.state_tensors, strict=True)
        assert all(relative_error(ours, theirs) < 1e-4 for ours, theirs in pairs)


# --- against the reference -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    path = tmp_path_factory.mktemp("corpus") / "text"
    path.write_bytes(np.random.default_rng(1).integers(61, size=20_000, dtype=np.uint8).tobytes())
    return Corpus.from_bytes_file(path)


def reference(corpus: Corpus, *, delayed: bool) -> ReferenceRun:
    spec = MODELS["gpt"]
    plan = TrainingPlan(
        spec, (2, 2), optimizer_config(), SEED, STEPS, PER_STEP, SEQUENCES, delayed=delayed
    )
    return train_reference(plan, corpus)


def test_two_stages_of_two_replicas_follow_the_reference(corpus: Corpus) -> None:
    stages = [[opened(stage, [2, 2], delayed=True) for _ in range(2)] for stage in range(2)]
    losses = dict.fromkeys(range(STEPS), 0.0)

    def run(microbatch: int) -> None:
        step = step_of(microbatch)
        samples = corpus.sample(microbatch, SEQUENCES, TOKENS, SEED).astype("<u2").tobytes()
        first, last = (replicas[microbatch % 2] for replicas in stages)
        boundary = first.call(Forward(step=step, microbatch=microbatch), samples)[1]
        request = ForwardBackward(step=step, microbatch=microbatch, tokens=samples)
        reply, gradient = last.call(request, *boundary)
        losses[step] += reply.loss_sum / STEP_TOKENS
        first.call(Backward(step=step, microbatch=microbatch), *gradient)

    run_all(run, of_step(0))
    for step in range(STEPS):
        following = of_step(step + 1) if step + 1 < STEPS else range(0)
        run_all(run, following[:3])  # the others after it, at the same parameters
        for replicas in stages:
            run_round(replicas)
        run_all(run, following[3:])
    expected, plain = reference(corpus, delayed=True), reference(corpus, delayed=False)
    assert list(losses.values()) == pytest.approx(expected.losses, rel=1e-5)
    assert list(losses.values()) != pytest.approx(plain.losses, rel=1e-3)
    for replicas in stages:
        own = replicas[0].replica
        for part in own.flat.layout:
            value = own.parameters[part.offset : part.offset + part.size].view(part.shape)
            assert relative_error(value, expected.state[part.name]) < 1e-3, part.name


def run_all(run: Callable[[int], None], microbatches: Iterable[int]) -> None:
    for microbatch in microbatches:
        run(microbatch)
