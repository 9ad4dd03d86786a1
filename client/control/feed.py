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
from client.control.matches import MatchesSnapshot
from client.control.methods import Caller, ControlApi
from client.control.snapshot import EventView, Snapshot
from client.control.updates import (
    MATCHES_EVERY_S,
    UPDATE_METHOD,
    Subscribe,
    Update,
)

FRESH_S = 0.2
"""A snapshot younger than that is used for the next front end, too."""
MAX_EVENTS_PER_UPDATE = 256


class Feed:
    """The newest snapshot and matching of one node, shared by its front ends."""

    def __init__(self, node: ControlApi) -> None:
        self._node = node
        self._snapshot: Snapshot | None = None
        self._snapshot_at = -math.inf
        self._matches: MatchesSnapshot | None = None
        self._matches_at = -math.inf

    def snapshot(self) -> Snapshot:
        """Return the node's status."""
        now = trio.current_time()
        if self._snapshot is None or now >= self._snapshot_at + FRESH_S:
            self._snapshot, self._snapshot_at = self._node.status(), now
        return self._snapshot

    def matches(self) -> MatchesSnapshot:
        """Return the matching."""
        now = trio.current_time()
        if self._matches is None or now >= self._matches_at + MATCHES_EVERY_S:
            self._matches, self._matches_at = self._node.matches(), now
        return self._matches

    def events(self, since: int) -> list[EventView]:
        """Return the next events after ``since``."""
        return self._node.events(since).events[:MAX_EVENTS_PER_UPDATE]


class Subscriber:
    """One front end: the updates sent to it, and the next one due.

    Args:
        caller: its connection, whose subscription may change at any time.
    """

    def __init__(self, caller: Caller, feed: Feed) -> None:
        self._caller, self._feed = caller, feed
        self._asked: Subscribe | None = None
        self._since = 0
        self._due = -math.inf
        self._matches_due = -math.inf

    async def wait_due(self) -> None:
        """Wait until the next update is due; those missed meanwhile are counted and skipped."""
        asked = self._subscription()
        period_s = 1 / asked.hz
        now = trio.current_time()
        passed = 0 if self._due == -math.inf else max(0, math.floor((now - self._due) / period_s))
        self._caller.seq += passed
        self._due = max(self._due + (passed + 1) * period_s, now)
        await trio.sleep_until(self._due)

    def encode(self) -> bytes:
        """Return the update for this moment; it counts as delivered."""
        asked, now = self._subscription(), trio.current_time()
        self._caller.seq += 1
        events = self._feed.events(self._since)
        missed = events[0].seq - self._since - 1 if events else 0
        matches = None
        if asked.matches and now >= self._matches_due:
            matches, self._matches_due = self._feed.matches(), now + MATCHES_EVERY_S
        update = Update(
            seq=self._caller.seq,
            time=time.time(),
            snapshot=self._feed.snapshot(),
            events=events,
            missed=missed,
            matches=matches,
        )
        self._since = events[-1].seq if events else self._since
        return rpc.encode_notification(UPDATE_METHOD, update)

    def _subscription(self) -> Subscribe:
        asked = self._caller.subscription
        if asked is None:
            raise RuntimeError("subscribe before asking for updates")
        if asked is not self._asked:
            self._asked, self._since = asked, asked.events_since
            self._due = self._matches_due = -math.inf
        return asked
