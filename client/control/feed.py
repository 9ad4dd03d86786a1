"""Updates for a front end that has subscribed: made when one can be taken, never queued.

Only the newest counts: nothing is made for a front end that does not read. So a slow or stopped one
costs the node one encoded update at most.
"""

from __future__ import annotations

import math
import time

import trio

from client.control import rpc
from client.control.methods import ControlApi
from client.control.updates import MATCHES_EVERY_S, UPDATE_METHOD, Update


class Subscriber:
    """The updates of one front end; ``since``: the last event that it knows."""

    def __init__(self, node: ControlApi, since: int) -> None:
        self._node, self._since = node, since
        self._matches_due = -math.inf

    def encode(self) -> bytes:
        """Return the update for this moment; it counts as delivered."""
        now, events = trio.current_time(), self._node.events(self._since).events
        missed = events[0].seq - self._since - 1 if events else 0
        matches = None
        if now >= self._matches_due:
            matches, self._matches_due = self._node.matches(), now + MATCHES_EVERY_S
        update = Update(
            time=time.time(),
            snapshot=self._node.status(),
            events=events,
            missed=missed,
            matches=matches,
        )
        self._since = events[-1].seq if events else self._since
        return rpc.encode_notification(UPDATE_METHOD, update)
