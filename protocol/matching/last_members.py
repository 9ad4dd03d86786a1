"""The last members: a peer must see a majority of them to decide for the whole swarm.

They are the members known when the present beacon began. A peer without a strict majority of them
may be in the smaller part of a partition, so it neither moves nor lets anybody move. At a new
beacon the list is renewed only by a view with a majority of the old one, so two parts never both
have a majority. State: references to views.
"""

from __future__ import annotations

from collections.abc import Collection

from protocol.ids import PeerId


class LastMembers:
    """Members of one beacon."""

    def __init__(self) -> None:
        self._beacon: int | None = None
        self._first_beacon: int | None = None
        self._names: Collection[PeerId] = ()
        self._gone: set[PeerId] = set()

    def observe(self, members: Collection[PeerId], beacon: int) -> None:
        """Take the view. In our first beacon the largest view counts, because we are arriving."""
        if self._first_beacon is None:
            self._first_beacon = self._beacon = beacon
        if beacon == self._first_beacon:
            if len(members) > len(self._names):
                self._names = members
        elif beacon != self._beacon and self.has_majority(members):
            self._beacon, self._names = beacon, members
            self._gone.clear()

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
