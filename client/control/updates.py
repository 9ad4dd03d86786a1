"""The typed ``update`` notification, which subscribed front ends receive.

Plain data, no behaviour. A recorded run is a file of updates, one per line.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from client.control.snapshot import EventView, Snapshot

UPDATE_METHOD = "update"
EVERY_S = 0.5
MAX_POINTS = 500


class Subscribe(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of ``subscribe``."""

    events_since: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """Events after this number; 0: all that are remembered."""


class Subscribed(Struct, frozen=True):
    """Answer to ``subscribe``; updates follow on the same connection, and nothing else."""

    subscribed: bool = True


class Update(Struct, frozen=True, kw_only=True):
    """One moment of a node, and the events since the previous update."""

    time: float
    """Unix seconds."""
    snapshot: Snapshot
    events: list[EventView] = []
    """In order, none twice."""
    missed: int = 0
    """Events that the node had forgotten before this front end read them."""


class StepPoint(Struct, frozen=True):
    """One point of a loss curve."""

    step: int
    time: float
    """Unix seconds."""
    loss: float
    """Nats per token."""
    tokens_per_s: float = 0.0


class Curve(Struct, frozen=True):
    """Answer to ``history``: the run as this volunteer has seen it, in earlier sessions, too;
    oldest first, thinned evenly."""

    points: list[StepPoint]
    held_out: list[StepPoint] = []
    """On held-out text, after so many steps; oldest first."""
