"""The roll: whom a peer has to see before it decides anything for the whole swarm.

The members known when the present beacon began. A peer that sees no strict majority of them may be
the smaller part of a partition: it neither calls epochs nor attests nor commits. The roll is
renewed at a new beacon only by a view that still has the majority of the old one, so two parts
never both have one. Holds references to views; costs nothing but at a new beacon.
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
        """Take the view. In the first beacon the largest view seen counts: we are arriving."""
        if self._first_beacon is None:
            self._first_beacon = self._beacon = beacon
        if beacon == self._first_beacon:
            if len(members) > len(self._names):
                self._names = members
        elif beacon != self._beacon and self.has_majority(members):
            self._beacon, self._names = beacon, members
            self._gone.clear()

    def excuse(self, peer: PeerId) -> None:
        """Strike somebody who said goodbye."""
        self._gone.add(peer)

    def has_majority(self, members: Collection[PeerId]) -> bool:
        """Tell whether a view has more than half of the roll."""
        expected = present = 0
        for peer in self._names:
            if peer not in self._gone:
                expected += 1
                present += peer in members
        return 2 * present > expected
