"""The typed answers to ``update`` and ``history``.

Plain data, no behaviour. A recorded run is a file of updates, one per line.
"""

from msgspec import Struct

from client.control.snapshot import EventView, Snapshot

MAX_POINTS = 500
EVENTS_AT_ONCE = 256


class Update(Struct, frozen=True, kw_only=True):
    """Answer to ``update``: one moment of a node, and the events since another one."""

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
