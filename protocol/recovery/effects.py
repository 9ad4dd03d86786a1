"""What the machine of recovery is told, and what it wants done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.recovery.stored import Copy, Lineage


@dataclass(frozen=True, slots=True)
class RecoveryContext:
    """Our view of the swarm."""

    live: frozenset[PeerId] = frozenset()
    """Live members, ourselves included."""
    versions: tuple[int | None, ...] = ()
    """By stage: newest version that a live replica of our lineage serves; None: nobody does."""
    eras: Mapping[PeerId, Mapping[int, int]] = field(default_factory=dict)
    """Of the others that we are linked with and that serve: the newest version of their seats in
    each era."""
    quorum: Callable[[float], bool] = lambda now: True
    """Whether a majority of the electors of each of our seats is within reach. Asked when we
    decide: it changes with time, while nothing else does."""
    moved: tuple[Mapping[PeerId, int], ...] = ()
    """By stage and replica: how much of the replica's step is there."""
    unseen: frozenset[int] = frozenset()
    """Stages that others report as served while we see no replica ourselves."""
    unlinked: frozenset[PeerId] = frozenset()
    """Live members known only from adverts."""
    is_gone: Callable[[PeerId], bool] = lambda peer: False
    """Whether a member's process has certainly ended."""
    serving: tuple[frozenset[PeerId], ...] = ()
    """By stage: the live replicas of our lineage."""
    heard: Callable[[], int] = lambda: 0
    """The newest version that a linked peer serves, also one whose advert does not count."""
    ended: Callable[[], int] = lambda: 0
    """The number of the electors of a seat of ours, if the processes of too many have ended for a
    majority; else 0."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Follow this lineage: each of our seats restarts at its version."""

    lineage: Lineage
    reason: str
    ours: bool = False
    """Whether we have decided it ourselves."""
    given_up: GivenUp | None = None
    """What we give up for it; None: it goes on from what we have made, or undoes little of it."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Our line of the run, which ends where it has met another one."""

    version: int
    """Its last."""
    steps: int
    """Those that the members of the other line have had no part in."""
    members: tuple[PeerId, ...]
    """Of the other line."""
    reached: int
    """The other line's version."""
    fetched: tuple[Copy, ...]
    """Its state, as it is kept from now on. All other copies on our disk are set aside."""


@dataclass(frozen=True, slots=True)
class FetchLine:
    """Fetch and verify copies of another line, and call ``fetched`` or ``not_fetched``; our own
    line goes on meanwhile."""

    lineage: Lineage
    copies: tuple[Copy, ...]
    donors: tuple[PeerId, ...]
    within_s: float
    """Seconds after which all of them are here, or it has failed."""


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Write a checkpoint of the version that each of our seats serves."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why the run does not go on yet."""

    what: str
    """The condition it waits for, in words: ``for a majority of the swarm``."""
    until: float | None = None
    """When it goes on without those it waits for, monotonic seconds; None: not before they come."""


RecoveryEffect = Effect | Adopt | FetchLine | SaveNow
