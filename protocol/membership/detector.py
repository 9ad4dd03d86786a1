"""The failure detector: tracks how long each linked peer has been silent.

It holds one time per watched peer. Peers send a heartbeat every second. A peer becomes suspect
after 3 s of silence and dead after 5 s; a lost connection makes it dead at once, and any heartbeat
makes it alive again. If our own tick comes more than a second late, *this* process was suspended
(stopped, swapped out), so the time since the last tick is not counted as silence. Monotonic time
only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from protocol.ids import PeerId

Health = Literal["alive", "suspect", "dead"]

SUSPECT_AFTER_S: Final = 3.0
DEAD_AFTER_S: Final = 5.0
TICK_S: Final = 1.0
MAX_LATENESS_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Transition:
    """A peer's health changed; ``words`` gives the reason."""

    peer: PeerId
    before: Health
    after: Health
    words: str


@dataclass(slots=True)
class _Watch:
    heard: float
    health: Health = "alive"

    @property
    def due(self) -> float:
        """When its silence makes it suspect or, if it is suspect already, dead."""
        return self.heard + (SUSPECT_AFTER_S if self.health == "alive" else DEAD_AFTER_S)


class Detector:
    """Watches linked peers."""

    def __init__(self) -> None:
        self._watched: dict[PeerId, _Watch] = {}
        self._last_tick: float | None = None

    def watch(self, peer: PeerId, now: float) -> list[Transition]:
        """Begin to watch a peer; this counts as a heartbeat."""
        if peer in self._watched:
            return self.heard(peer, now)
        if not self._watched:
            self._last_tick = now  # no tick was due while nobody was watched
        self._watched[peer] = _Watch(now)
        return []

    def forget(self, peer: PeerId) -> None:
        """Stop watching a peer."""
        self._watched.pop(peer, None)

    def health(self, peer: PeerId) -> Health | None:
        """Return a peer's health, None if it is not watched."""
        watch = self._watched.get(peer)
        return None if watch is None else watch.health

    def heard(self, peer: PeerId, now: float) -> list[Transition]:
        """A heartbeat came."""
        watch = self._watched.get(peer)
        if watch is None:
            return []
        watch.heard = max(watch.heard, now)
        return self._turn(peer, watch, "alive", "heard again")

    def tick(self, now: float) -> list[Transition]:
        """Judge the silence of every peer."""
        self._forgive_own_sleep(now)
        return [
            transition
            for peer, watch in self._watched.items()
            for transition in self._judge(peer, watch, now)
        ]

    def next_deadline(self) -> float | None:
        """Return when to tick next, or None if no peer is watched."""
        if not self._watched:
            return None
        due = [watch.due for watch in self._watched.values() if watch.health != "dead"]
        return min([(self._last_tick or 0.0) + TICK_S, *due])

    def _forgive_own_sleep(self, now: float) -> None:
        """If this tick is late, ignore all silence since the last one: we were not listening."""
        if self._last_tick is not None and now - self._last_tick > TICK_S + MAX_LATENESS_S:
            for watch in self._watched.values():
                watch.heard = min(now, watch.heard + now - self._last_tick)
        self._last_tick = now

    def _judge(self, peer: PeerId, watch: _Watch, now: float) -> list[Transition]:
        words = f"silent for {now - watch.heard:.1f} s"
        if now >= watch.heard + DEAD_AFTER_S:
            return self._turn(peer, watch, "dead", words)
        if watch.health == "alive" and now >= watch.due:
            return self._turn(peer, watch, "suspect", words)
        return []

    @staticmethod
    def _turn(peer: PeerId, watch: _Watch, after: Health, words: str) -> list[Transition]:
        before, watch.health = watch.health, after
        return [] if before == after else [Transition(peer, before, after, words)]
