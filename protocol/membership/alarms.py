"""Alarms: who has said lately, alone, that our stage had gone on without us.

A replica that hears of a later version of its stage gives up its state and fetches that one. An
honest sibling is seldom the only one ahead: if all of a stage goes on without a replica, so do
several members. So each alarm that one peer raises alone, and each that it takes back, makes its
word count alone only after twice as long, for ``WINDOW_S`` (``seat/following.py``). Whether the
alarm was true is not asked: others would have to say so, and they may lie. A member that names
versions that nobody made costs its siblings a few fetches in this time, and not all of it.

It outlives our seats. State, bounded: by peer the times of its alarms. Times are monotonic seconds.
"""

from __future__ import annotations

from typing import Final

from protocol.ids import PeerId

WINDOW_S: Final = 6 * 3600.0
MAX_PEERS: Final = 256
MAX_TIMES: Final = 6
"""A replica that was really left behind waits six minutes at most."""


class Alarms:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._at: dict[PeerId, tuple[float, ...]] = {}

    def times(self, peer: PeerId, now: float) -> int:
        """Return how many alarms a peer has raised alone lately, ``MAX_TIMES`` at most."""
        return sum(now < at + WINDOW_S for at in self._at.get(peer, ()))

    def raised(self, peer: PeerId, now: float) -> None:
        """A peer alone has said that a step of ours was closed without us."""
        before = self._at.pop(peer, ())
        self._at[peer] = (*before, now)[-MAX_TIMES:]
        while len(self._at) > MAX_PEERS:
            del self._at[next(iter(self._at))]
