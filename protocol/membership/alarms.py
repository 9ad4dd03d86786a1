"""Alarms: who has said lately, alone, that our stage had gone on without us.

A replica that hears of a later version of its stage gives up its state and fetches that one. An
honest sibling is seldom the only one ahead: when a stage goes on without a replica, several members
are past the step. So for each alarm that one peer raised alone, or took back, in the last
``WINDOW_S``, its word alone is believed only after twice as long (``seat/following.py``). Whether
an alarm was true is not asked: others would have to say so, and they may lie. A member that names
versions that nobody made can make a sibling fetch its state every six minutes in the end, and no
longer every six seconds. The exception is a member without which no step can be closed anyway.

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
