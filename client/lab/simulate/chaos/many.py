"""Runs many seeds on all cores and adds up the results."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.replay import run_once

CHUNK = 20
"""Seeds that a process runs before it reports."""


@dataclass
class Tally:
    """The results of some seeds."""

    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Faults done, by kind."""
    fewest: int | None = None
    """Faults done in the run that met fewest."""
    phases: Counter[str] = field(default_factory=Counter)
    """Activities of the volunteers that faults took from the swarm."""
    tricks: Counter[str] = field(default_factory=Counter)
    """Tricks played, by name of the message's type; empty: on any."""
    lies: Counter[str] = field(default_factory=Counter)
    """Lies told, by kind."""
    versions: int = 0
    """Versions made, counted in the stage that made fewest."""
    audits: Counter[str] = field(default_factory=Counter)
    """Results of audits."""
    lasted: Counter[int] = field(default_factory=Counter)
    """Steps that a liar stayed in its stage after it began to contribute lies."""
    undiscovered: int = 0
    """Runs at whose end the liar was still in."""
    failed: dict[int, str] = field(default_factory=dict)
    """By seed: the broken invariant, the command that replays it, and the end of the log."""

    def add(self, other: Tally) -> None:
        """Add the results of other seeds."""
        counts = [count for count in (self.fewest, other.fewest) if count is not None]
        for each in fields(self):
            if each.name not in ("fewest", "failed"):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.fewest = min(counts, default=None)
        self.failed |= other.failed


def run_some(configs: Iterable[ChaosConfig]) -> Tally:
    """Run some worlds one after the other."""
    tally = Tally()
    for config in configs:
        world, violation = run_once(config)
        met = world.faults
        one = Tally(1, met.done, met.total, met.phases, met.tricks, world.liar.told)
        one.versions = min(world.versions())
        one.audits, one.undiscovered = world.audits.found, world.audits.undiscovered
        one.lasted = Counter(world.audits.lasted)
        if violation:
            one.failed[config.seed], one.fewest = violation, None
        tally.add(one)
        del world, one
        gc.collect()
    return tally


def run_many(configs: Sequence[ChaosConfig]) -> Iterator[Tally]:
    """Run worlds on all cores; yield the results so far after each chunk."""
    spawn = multiprocessing.get_context("spawn")
    chunks = [configs[start : start + CHUNK] for start in range(0, len(configs), CHUNK)]
    tally = Tally()
    # A world lives until its seed is done: the collector would find nothing.
    with ProcessPoolExecutor(os.cpu_count() or 1, spawn, gc.disable) as pool:
        for some in pool.map(run_some, chunks):
            tally.add(some)
            yield tally
