"""The last members: a peer must see a majority of them to decide for the whole swarm.

They are the members known when the present beacon began. A peer without a strict majority of them
may be in the smaller part of a partition, so it neither moves nor lets anybody move. At a new
beacon the list is renewed only by a view with a majority of the old one, so two parts never both
have a majority. After half an hour any view renews it: else members that vanish together, real or
invented, would keep the others from ever moving again. State: the list.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocol.ids import PeerId

LONGEST_BEACONS: Final = 3
"""Beacons for which a list counts that no view has a majority of."""


class LastMembers:
    """Members of one beacon."""

    def __init__(self) -> None:
        self._beacon: int | None = None
        self._first_beacon: int | None = None
        self._names: frozenset[PeerId] = frozenset()
        self._gone: set[PeerId] = set()

    def observe(self, members: Collection[PeerId], beacon: int) -> None:
        """Take the view. In our first beacon the largest view counts, because we are arriving."""
        if self._beacon is None or self._first_beacon is None:
            self._first_beacon = self._beacon = beacon
        if beacon == self._first_beacon:
            if len(members) > len(self._names):
                self._names = frozenset(members)
        elif beacon != self._beacon and (
            self.has_majority(members) or beacon > self._beacon + LONGEST_BEACONS
        ):
            self._beacon, self._names = beacon, frozenset(members)
            self._gone.clear()

    def excuse(self, peer: PeerId) -> None:
        """Remove a peer that left in order."""
        self._gone.add(peer)

    def has_majority(self, members: Collection[PeerId]) -> bool:
        """Tell whether a view has more than half of the last members."""
        expected = self._names - self._gone
        return 2 * len(expected.intersection(members)) > len(expected)
