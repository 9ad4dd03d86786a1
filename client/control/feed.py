"""Updates for front ends that have subscribed: made when one can be taken, never queued.

Only the newest counts: nothing is made for a front end that does not read, and all that ask at the
same time share one snapshot. So a slow or stopped front end costs the node one encoded update at
most.
"""

from __future__ import annotations

import math
import time

import trio

from client.control import rpc
from client.control.methods import ControlApi
from client.control.snapshot import Snapshot
from client.control.updates import MATCHES_EVERY_S, UPDATE_METHOD, Update

FRESH_S = 0.2
"""A snapshot younger than that is used for the next front end, too."""
MAX_EVENTS_PER_UPDATE = 256


class Feed:
    """The newest snapshot of one node, shared by its front ends."""

    def __init__(self, node: ControlApi) -> None:
        self.node = node
        self._snapshot: Snapshot | None = None
        self._made_at = -math.inf

    def snapshot(self) -> Snapshot:
        """Return the node's status."""
        now = trio.current_time()
        if self._snapshot is None or now >= self._made_at + FRESH_S:
            self._snapshot, self._made_at = self.node.status(), now
        return self._snapshot


class Subscriber:
    """The updates of one front end; ``since``: the last event that it knows."""

    def __init__(self, feed: Feed, since: int) -> None:
        self._feed, self._since = feed, since
        self._matches_due = -math.inf

    def encode(self) -> bytes:
        """Return the update for this moment; it counts as delivered."""
        now, node = trio.current_time(), self._feed.node
        events = node.events(self._since).events[:MAX_EVENTS_PER_UPDATE]
        missed = events[0].seq - self._since - 1 if events else 0
        matches = None
        if now >= self._matches_due:
            matches, self._matches_due = node.matches(), now + MATCHES_EVERY_S
        update = Update(
            time=time.time(),
            snapshot=self._feed.snapshot(),
            events=events,
            missed=missed,
            matches=matches,
        )
        self._since = events[-1].seq if events else self._since
        return rpc.encode_notification(UPDATE_METHOD, update)
