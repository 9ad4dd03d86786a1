"""One run again, exactly; and the few of its faults that suffice to break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client.simulate.chaos.config import ChaosConfig
from client.simulate.chaos.schedule import Fault, schedule
from client.simulate.chaos.world import ChaosWorld
from client.simulate.invariants import InvariantViolation
from protocol.seat.seat import Seat

MakeSeat = Callable[..., Seat]


def run_once(
    config: ChaosConfig, faults: Sequence[Fault] | None = None, seat_class: MakeSeat = Seat
) -> tuple[ChaosWorld, str]:
    """Run a world; return it and what it broke (empty: nothing)."""
    world = ChaosWorld(config, faults, seat_class)
    try:
        world.run()
    except InvariantViolation as violation:
        return world, str(violation)
    return world, ""


def kind_of(violation: str) -> str:
    """Return what kind of violation a message tells of, so that two can be compared."""
    words = violation.split(": ")
    return words[1][:11] if len(words) > 1 else violation


def shrink(config: ChaosConfig, seat_class: MakeSeat = Seat) -> list[Fault]:
    """Return few of a run's faults that still break it in the same way (Zeller's ddmin)."""
    faults = schedule(config)
    wanted = kind_of(run_once(config, faults, seat_class)[1])
    if not wanted:
        return []
    pieces = 2
    while len(faults) > 1:
        size = -(-len(faults) // pieces)
        for start in range(0, len(faults), size):
            fewer = faults[:start] + faults[start + size :]
            if fewer and kind_of(run_once(config, fewer, seat_class)[1]) == wanted:
                faults, pieces = fewer, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(faults), 2 * pieces)
    return faults
