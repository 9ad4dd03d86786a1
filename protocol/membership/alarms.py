"""Alarms: who said that our stage had gone on without us, and whether it was true.

A replica that hears of a later version of its stage gives up its state and fetches that one. If the
stage then admits it at a version that is no later than its own was, the alarm was false. From then
on the word of the same peer alone is believed after twice as long, each time
(``seat/following.py``). So a member that names versions that nobody made costs its siblings a few
fetches, and not all their time. A true alarm makes up for all false ones. It outlives our seats.
State, bounded: false alarms by peer, and by stage the alarm that was not answered yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId

MAX_PEERS: Final = 256


@dataclass(frozen=True, slots=True)
class _Alarm:
    era: int
    version: int
    """Which we gave up."""
    peers: frozenset[PeerId]


class Alarms:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._false = Counter[PeerId]()
        self._raised: dict[int, _Alarm] = {}

    def times(self, peer: PeerId) -> int:
        """Return how many alarms of a peer were false since its last true one."""
        return self._false[peer]

    def raised(self, stage: int, era: int, version: int, peers: Collection[PeerId]) -> None:
        """By the word of ``peers`` alone our seat in a stage gives up ``version``."""
        self._raised[stage] = _Alarm(era, version, frozenset(peers))

    def answered(self, stage: int, era: int, version: int) -> None:
        """A leader of the stage has admitted us at ``version``. In another era that says nothing:
        a lineage may begin at any version."""
        alarm = self._raised.pop(stage, None)
        if alarm is None or alarm.era != era:
            return
        for peer in sorted(alarm.peers):
            times = self._false.pop(peer, 0)
            if version <= alarm.version:
                self._false[peer] = times + 1
        for peer in list(self._false)[:-MAX_PEERS]:
            del self._false[peer]
