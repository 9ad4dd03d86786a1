"""The faults of a run and their times, drawn from its seed before it begins.

A schedule is a plain list, so a part of it can be run alone to narrow down the cause of a failure
(``replay``). Faults that the configuration forbids when they are due are left out, so more are
drawn than injected. Every other fault that takes a volunteer is *aimed*: it waits for a message and
strikes its sender at that moment, in the midst of a round.
"""

import random
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, get_args

from client.lab.simulate.agenda import Range
from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.links import TrickKind

FaultKind = Literal[
    "message", "storm", "crash", "wipe", "replace", "pause", "split", "worker", "tensor", "clock"
]
FIRST_S: Final = 0.3
MESSAGES: Final = (
    "",
    "Forward",
    "Backward",
    "Receipt",
    "Have",
    "Lease",
    "LeaseRequest",
    "LedgerReport",
    "Plan",
    "Segment",
    "Reduced",
    "Ready",
    "Commit",
    "Vote",
    "JoinStage",
    "Admit",
    "Heartbeat",
)
AIMED_AT: Final = tuple(name for name in MESSAGES if name not in ("", "Heartbeat"))
AIMED: Final[frozenset[FaultKind]] = frozenset({"crash", "wipe", "pause", "split", "worker"})
SPARE: Final = 3
"""Ratio of faults drawn to faults wanted."""
TIMES: Final = 2
"""Draws in a run: also one that permits few faults gets all of its number."""
WEIGHTS: Final[dict[FaultKind, float]] = {
    "message": 60,
    "storm": 4,
    "crash": 8,
    "wipe": 2,
    "replace": 2,
    "pause": 8,
    "split": 4,
    "worker": 4,
    "tensor": 5,
    "clock": 3,
}
SPAN_S: Final[dict[FaultKind, Range]] = {
    "storm": (0.5, 6.0),
    "crash": (0.05, 8.0),
    "wipe": (0.05, 8.0),
    "replace": (0.5, 8.0),
    "pause": (0.1, 14.0),
    "split": (0.2, 14.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``who`` picks volunteers for any number of them."""

    at: float
    kind: FaultKind
    who: int = 0
    span_s: float = 0.0
    trick: TrickKind = "lose"
    message: str = ""
    """Name of the message's type on which a trick is played, or whose sender is struck."""
    aimed: bool = False
    lossy: bool = False
    rate: float = 1.0


def schedule(config: ChaosConfig) -> list[Fault]:
    """Return the faults of a run in order of time."""
    drawn = random.Random(f"faults {config.seed}")
    kinds = list(WEIGHTS)
    at, faults = FIRST_S, []
    weights = list(WEIGHTS.values())
    some = (drawn.choices(kinds, weights, k=SPARE * config.faults) for _ in range(TIMES))
    for kind in chain.from_iterable(some):
        at += drawn.expovariate(1 / config.gap_s)
        aimed = kind in AIMED and drawn.random() < 0.5
        faults.append(
            Fault(
                at=at,
                kind=kind,
                who=drawn.randrange(1 << 16),
                span_s=drawn.uniform(*SPAN_S.get(kind, (0.0, 0.0))),
                trick=drawn.choice(get_args(TrickKind)),
                message=drawn.choice(AIMED_AT if aimed else MESSAGES),
                aimed=aimed,
                lossy=drawn.random() < 0.5,
                rate=drawn.uniform(0.9, 1.1),
            )
        )
    return faults
