"""Repeats one run exactly, and reduces its faults to the few that break it."""

import hashlib
from collections.abc import Sequence

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.schedule import Fault, schedule
from client.lab.simulate.chaos.trial import Trial
from client.lab.simulate.chaos.world import ChaosWorld
from client.lab.simulate.invariants import InvariantViolation


def run_once(config: ChaosConfig, faults: Sequence[Fault] | None = None) -> tuple[ChaosWorld, str]:
    """Run a world; return it and its violation (empty: none)."""
    world = ChaosWorld(config, faults)
    try:
        Trial(world).run()
    except InvariantViolation as violation:
        return world, str(violation)
    return world, ""


def log_hash(world: ChaosWorld) -> str:
    """Return the hash of a run's log: equal for equal runs."""
    return hashlib.blake2b("\n".join(world.log).encode(), digest_size=16).hexdigest()


def kind_of(violation: str) -> str:
    """Return the kind of a violation from its message, so that two can be compared."""
    words = violation.split(": ")
    return words[1][:11] if len(words) > 1 else violation


def shrink(config: ChaosConfig) -> list[Fault]:
    """Return few of a run's faults that still break it in the same way (Zeller's ddmin)."""
    world, violation = run_once(config)
    wanted = kind_of(violation)
    if not wanted:
        return []
    faults = [fault for fault in schedule(config) if fault.at <= world.agenda.now]
    pieces = 2
    while len(faults) > 1:
        size = -(-len(faults) // pieces)
        for start in range(0, len(faults), size):
            fewer = faults[:start] + faults[start + size :]
            if fewer and kind_of(run_once(config, fewer)[1]) == wanted:
                faults, pieces = fewer, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(faults), 2 * pieces)
    return faults
