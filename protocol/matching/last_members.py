"""The last members: a peer must see a majority of them to decide for the whole swarm.

They are the members known when the present beacon began. A peer without a strict majority of them
may be in the smaller part of a partition, so it neither moves nor lets anybody move. At a new
beacon the list is renewed only by a view with a majority of the old one, so two parts never both
have a majority. A member that was missing for half an hour no longer counts: else members that
vanish together, real or invented, would keep the others from ever moving again. State: each
member's last beacon.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocol.ids import PeerId

MISSED_BEACONS: Final = 3
"""Beacons for which a missing member counts."""


class LastMembers:
    """Members of one beacon."""

    def __init__(self) -> None:
        self._beacon: int | None = None
        self._first_beacon: int | None = None
        self._looked_at: int | None = None
        self._names: dict[PeerId, int] = {}
        """By member: the last beacon that began while we saw it."""
        self._gone: set[PeerId] = set()

    def observe(self, members: Collection[PeerId], beacon: int) -> None:
        """Take the view. In our first beacon the largest view counts, because we are arriving."""
        if self._first_beacon is None:
            self._first_beacon = self._beacon = beacon
        if beacon == self._first_beacon:
            if len(members) > len(self._names):
                self._names = dict.fromkeys(members, beacon)
        elif beacon != self._beacon:
            self._forget_missing(members, beacon)
            if self.has_majority(members):
                self._beacon, self._names = beacon, dict.fromkeys(members, beacon)
                self._gone.clear()

    def _forget_missing(self, members: Collection[PeerId], beacon: int) -> None:
        if beacon == self._looked_at:
            return
        self._looked_at = beacon
        last = {peer: beacon if peer in members else at for peer, at in self._names.items()}
        self._names = {peer: at for peer, at in last.items() if beacon - at <= MISSED_BEACONS}

    def excuse(self, peer: PeerId) -> None:
        """Remove a peer that left in order."""
        self._gone.add(peer)

    def has_majority(self, members: Collection[PeerId]) -> bool:
        """Tell whether a view has more than half of the last members."""
        expected = present = 0
        for peer in self._names:
            if peer not in self._gone:
                expected += 1
                present += peer in members
        return 2 * present > expected
