"""The schedule of faults: time, kind and victim, drawn from a seed; deterministic. Pure.

A schedule does not name a volunteer, because the swarm decides which volunteers hold a stage. It
names the position of the victim among a stage's holders, in the order of their names.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from client.lab.chaos.catalogue import Fault, Kind, stages_of

STOPPED_S = (5.0, 10.0)
NETWORK_S = 10.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault to come."""

    number: int
    at_s: float
    """Since the measured time began."""
    fault: Fault
    stage: int
    """Stage of the victim."""
    pick: int
    """Index of the victim among the holders, modulo their number."""
    seconds: float
    """Seconds that it lasts, if it lasts."""


def draw_schedule(
    faults: Sequence[Fault], *, seconds: float, every_s: float, stages: int, seed: int
) -> tuple[Planned, ...]:
    """Return a fault for every ``every_s``, half of that before the first and after the last.

    Every second one is a kill: most volunteers leave without notice. The other kinds take turns in
    a random order, and so do the moments of each: a short run has as many kinds as possible, and a
    long one has every fault before any except kills is repeated.
    """
    rng = random.Random(seed)
    possible = [fault for fault in faults if stages_of(fault, stages)]
    count = max(1, int(seconds / every_s)) if possible else 0
    return tuple(
        Planned(
            number=number,
            at_s=(number + 0.5) * every_s,
            fault=fault,
            stage=rng.choice(stages_of(fault, stages)),
            pick=rng.randrange(1000),
            seconds=_duration(fault.kind, rng),
        )
        for number, fault in enumerate(_deal(possible, count, rng))
    )


def _deal(faults: Sequence[Fault], count: int, rng: random.Random) -> list[Fault]:
    """Yield kills and other faults in turn; without one of the two, the other alone."""
    kills = [fault for fault in faults if fault.kind == "kill"]
    others = [fault for fault in faults if fault.kind != "kill"]
    if not kills or not others:
        return _in_turns(faults, count, rng)
    pairs = zip(_in_turns(kills, count, rng), _in_turns(others, count, rng), strict=True)
    return list(itertools.islice(itertools.chain.from_iterable(pairs), count))


def _in_turns(faults: Sequence[Fault], count: int, rng: random.Random) -> list[Fault]:
    """Yield a first moment of every kind, then a second of those that have one, and so on."""
    kinds = sorted({fault.kind for fault in faults})
    rng.shuffle(kinds)
    hands: list[list[Fault]] = []
    for kind in kinds:
        hands.append(sorted({fault for fault in faults if fault.kind == kind}))
        rng.shuffle(hands[-1])
    dealt = [fault for row in itertools.zip_longest(*hands) for fault in row if fault is not None]
    return list(itertools.islice(itertools.cycle(dealt), count))


def _duration(kind: Kind, rng: random.Random) -> float:
    if kind == "stop":
        return round(rng.uniform(*STOPPED_S), 1)
    return NETWORK_S if kind in ("partition", "delay", "slow") else 0.0
