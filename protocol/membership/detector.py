"""The failure detector: tracks how long each linked peer has been silent.

Peers send a heartbeat every second. A peer is dead after 5 s of silence; a lost connection makes it
dead at once, and any heartbeat makes it alive again. If our own tick comes more than a second late,
*this* process was suspended (stopped, swapped out), so the time since the last tick is not counted
as silence. State: when each watched peer was last heard, and who is dead. Monotonic time only.
"""

from typing import Final

from protocol.ids import PeerId
from protocol.pace import HEARD_S, TICK_S

DEAD_AFTER_S: Final = HEARD_S + TICK_S
"""A peer that nobody hears any more has missed a heartbeat more than one that is in touch."""


class Detector:
    """Watches linked peers."""

    def __init__(self) -> None:
        self._heard: dict[PeerId, float] = {}
        self._dead: set[PeerId] = set()
        self._last_tick: float | None = None

    def watch(self, peer: PeerId, now: float) -> None:
        """Begin to watch a peer; this counts as a heartbeat."""
        if not self._heard:
            self._last_tick = now  # no tick was due while nobody was watched
        self._heard.setdefault(peer, now)
        self.heard(peer, now)

    def forget(self, peer: PeerId) -> None:
        """Stop watching a peer."""
        self._heard.pop(peer, None)
        self._dead.discard(peer)

    def heard(self, peer: PeerId, now: float) -> None:
        """A heartbeat came."""
        if peer in self._heard:
            self._heard[peer] = max(self._heard[peer], now)
            self._dead.discard(peer)

    def tick(self, now: float) -> dict[PeerId, float]:
        """Return the peers that are dead from now on, with the seconds for which they were
        silent."""
        self._forgive_own_sleep(now)
        silent = {peer: now - at for peer, at in self._heard.items() if now >= at + DEAD_AFTER_S}
        found = {peer: seconds for peer, seconds in silent.items() if peer not in self._dead}
        self._dead |= found.keys()
        return found

    def next_deadline(self) -> float | None:
        """Return when to tick next, or None if no peer is watched."""
        if not self._heard:
            return None
        due = [at + DEAD_AFTER_S for peer, at in self._heard.items() if peer not in self._dead]
        return min([(self._last_tick or 0.0) + TICK_S, *due])

    def _forgive_own_sleep(self, now: float) -> None:
        """If this tick is late, ignore all silence since the last one: we were not listening."""
        if self._last_tick is not None and now - self._last_tick > 2 * TICK_S:
            slept_s = now - self._last_tick
            self._heard = {peer: min(now, at + slept_s) for peer, at in self._heard.items()}
        self._last_tick = now
