"""Local rounds of executors equal those of the reference, given who counted what in which order."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from client.lab.reference import Dealt, train_reference
from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.optimizer import OptimizerSpec
from tests.support.compute_rounds import close_round
from tests.support.compute_stages import (
    MICROBATCHES,
    OPTIMIZER,
    SEED,
    SEQUENCES,
    TOKENS,
    Chain,
    of_step,
    relative_error,
    small_run,
)
from tests.support.texts import corpus_of

STEPS = 4
ROUNDS = [LocalRounds(2), LocalRounds(4)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    text = tmp_path_factory.mktemp("text") / "corpus"
    text.write_bytes(np.random.default_rng(1).integers(32, 61, 20_000, np.uint8).tobytes())
    return corpus_of(str(text))


def dealt_to(count: int) -> Dealt:
    """Every step's microbatches in an order by chance, to replicas of which some are faster."""

    def of_replicas(step: int) -> Sequence[Sequence[int]]:
        chance = random.Random(step)
        counted: list[list[int]] = [[] for _ in range(count)]
        for microbatch in chance.sample(of_step(step), MICROBATCHES):
            chance.choice(counted).append(microbatch)
        return counted

    return of_replicas


@pytest.mark.parametrize("optimizer", [OPTIMIZER, replace(OPTIMIZER, name="muon")])
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("cut", "count"), [((4,), 1), ((4,), 3), ((2, 2), 1)])
def test_executors_follow_the_reference(
    cut: tuple[int, ...], count: int, rounds: LocalRounds, optimizer: OptimizerSpec, corpus: Corpus
) -> None:
    options = {"local_rounds": rounds, "optimizer": optimizer}
    chains = [Chain(cut, **options) for _ in range(count)]
    stages = list(zip(*(chain.workers for chain in chains), strict=True))
    dealt, losses = dealt_to(count), [0.0] * STEPS
    for step in range(STEPS):
        for chain, counted in zip(chains, dealt(step), strict=True):
            for microbatch in counted:  # with no other in flight
                samples = corpus.sample(microbatch, SEQUENCES, TOKENS, SEED).astype("<u2").tobytes()
                passed = chain.run(microbatch, step=step, tokens=samples)
                losses[step] += passed.loss / (MICROBATCHES * SEQUENCES * TOKENS)
        for replicas in stages:
            assert len({reply.hash for reply in close_round(replicas, step)}) == 1
    run = small_run(cut, steps=STEPS, **options)
    expected = train_reference(run, corpus, dealt=dealt)
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    for replicas in stages:
        own = replicas[0].replica
        for name, value in own.flat.views(own.parameters).items():
            assert relative_error(value, expected.state[name]) < 1e-3, name
    in_order = train_reference(run, corpus)
    assert in_order.losses != pytest.approx(expected.losses, rel=1e-4)
