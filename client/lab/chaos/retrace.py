"""Local rounds again in one process, each shared among its replicas as a run has shared it.

How many share a round decides what it makes: fewer replicas take more steps each, and their losses
fall sooner. So a run is held against its own rounds: whoever missed one comes back as a newcomer,
and nothing else is lost. The logs say how many microbatches each replica counted, not which; a draw
says that, and what it matters is seen where a run without faults is held against its own. Imports
torch.
"""

import itertools
import multiprocessing
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from client.lab.reference import microbatches_of, train_reference
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
    if not run.shares:
        return {}
    manifest = replace(run.manifest, steps=len(run.shares))
    counted = _by_replica(run.shares, manifest.microbatches_per_step)
    rng = random.Random(manifest.seed)

    def dealt(step: int) -> list[list[int]]:
        turns = [replica for replica, count in counted[step].items() for _ in range(count)]
        rng.shuffle(turns)
        hands: list[list[int]] = [[] for _ in range(max(counted[step]) + 1)]
        for replica, microbatch in zip(turns, microbatches_of(manifest, step), strict=False):
            hands[replica].append(microbatch)
        return hands

    corpus = Corpus.from_folder(open_folder(run.data))
    return dict(enumerate(train_reference(manifest, corpus, threads=1, dealt=dealt).losses))


def _by_replica(shares: Sequence[Mapping[str, int]], whole: int) -> list[dict[int, int]]:
    """Return what each replica counted, of each step; it is another one after a step without it.
    What no log accounts for was counted by one that died before it said so."""
    numbers, known, found = itertools.count(), dict[str, int](), list[dict[int, int]]()
    for of_step in shares:
        before = known
        known = {name: before[name] if name in before else next(numbers) for name in of_step}
        counted = {known[name]: count for name, count in sorted(of_step.items())}
        if (rest := whole - sum(of_step.values())) > 0:
            died = [before[name] for name in sorted(before.keys() - known.keys())]
            counted[died[0] if died else next(numbers)] = rest
        found.append(counted)
    return found
