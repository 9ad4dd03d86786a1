"""Local rounds again in one process, each shared among its replicas as a run has shared it.

How many share a round decides what it makes: fewer replicas take more steps each, and their losses
fall sooner. So a run with faults is held against its own rounds, made by replicas that lose
nothing. The logs say how many microbatches each replica counted, not which: a draw says that, and
what it costs is seen where a run without faults is held against its own. Imports torch.
"""

import multiprocessing
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from client.lab.reference import train_reference, training_plan
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import open_folder
from protocol.manifest import Manifest


@dataclass(frozen=True)
class Rounds:
    """The rounds of a run in one stage.

    Fields:
        manifest: of its swarm.
        data: the folder of its training data.
        shares: of each round from the first, how many microbatches each replica counted, by name.
    """

    manifest: Manifest
    data: Path
    shares: Sequence[Mapping[str, int]]


def retrace(runs: Sequence[Rounds]) -> list[dict[int, float]]:
    """Make the rounds of some runs again, each in a process; return their losses by step."""
    with multiprocessing.get_context("spawn").Pool(len(runs)) as pool:
        return pool.map(losses, runs)


def losses(run: Rounds) -> dict[int, float]:
    """Make the rounds of a run again; return the losses by step."""
    plan = replace(training_plan(run.manifest), steps=len(run.shares))
    names = sorted({name for shares in run.shares for name in shares})
    rng = random.Random(plan.seed)

    def dealt(step: int) -> list[list[int]]:
        turns = [name for name, count in sorted(run.shares[step].items()) for _ in range(count)]
        # What no log accounts for was counted by one that died before it said so.
        turns += [""] * (plan.microbatches_per_step - len(turns))
        rng.shuffle(turns)
        hands: dict[str, list[int]] = {name: [] for name in (*names, "")}
        for name, microbatch in zip(turns, plan.of_step(step), strict=False):
            hands[name].append(microbatch)
        return list(hands.values())

    corpus = Corpus.from_folder(open_folder(run.data))
    return dict(enumerate(train_reference(plan, corpus, threads=1, dealt=dealt).losses))
