"""Configuration of a chaos run: the swarm, its speeds, and the number of faults."""

import random
from dataclasses import dataclass

from client.lab.simulate.agenda import Range


@dataclass(frozen=True)
class ChaosConfig:
    """See the module's docstring; the defaults of a run are drawn by ``drawn``."""

    seed: int = 0
    stages: int = 2
    replicas: int = 3
    per_step: int = 5
    faults: int = 200
    gap_s: float = 0.4
    """Mean time between two faults."""
    compute_s: Range = (0.01, 0.06)
    links_survive_silence: bool = True
    """Whether a link to a peer that was silent for too long is kept, or closed."""
    checkpoint_every: int = 2
    hashes_later: bool = False
    """Whether workers compute a version's hash beside the next step's passes."""
    lies: tuple[str, ...] = ()
    """The lies of one more member, in some stage (``liar``); empty: there is no liar."""
    liars: int = 1
    """How many such members, if there are any."""
    lies_from: int = 1
    """The step at which they begin to contribute lies."""
    audits: float = 0.0
    """Share of the contributions that is audited; 0: the run has no audits."""
    parting: bool = False
    """Whether members train alone while they are apart: they remember whom they met, and what two
    lineages make is not the same."""


def drawn(
    seed: int,
    lies: tuple[str, ...] = (),
    audits: float = 0.0,
    *,
    hashes_later: bool = False,
) -> ChaosConfig:
    """Return the configuration of a seed: every seed has another swarm."""
    draw = random.Random(f"config {seed}")
    return ChaosConfig(
        seed=seed,
        stages=draw.choice((2, 2, 3)),
        replicas=draw.choice((2, 3)),
        per_step=draw.choice((4, 5, 6)),
        links_survive_silence=draw.random() < 0.5,
        lies=lies,
        audits=audits,
        hashes_later=hashes_later,
    )


STEPS = 100_000
"""Steps of the run until the world ends it: more than any run makes."""
