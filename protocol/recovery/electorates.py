"""Electorates: whose word takes a volunteer that sees no trouble out of its lineage.

Every plan names the electors of the next step, and without a majority of them nobody closes it
(``rounds/quorum.py``). So they alone can say that the run goes on elsewhere. A peer that has worked
with us once has a voice for as long as we know it, and identities are free: those that have come
and gone may be more than those that are here. A lineage is *seconded* if a majority of the electors
of one plan that we have followed say in their stored records that they follow it. Earlier plans
count as well, because parts of a split swarm name only their own members since they parted.

State: the electors of the latest plans, each set once, bounded. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from protocol.ids import PeerId, rank

MAX_ELECTORATES: Final = 16
"""Different sets of electors that are remembered, the latest: they change when members come or
go."""


class Electorates:
    """See the module's docstring; ``me`` is ourselves."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._sets: dict[tuple[int, frozenset[PeerId]], None] = {}

    def named(self, stage: int, electors: Collection[PeerId]) -> None:
        """Take the electors of a plan that we have followed."""
        named = stage, frozenset(electors)
        self._sets.pop(named, None)
        self._sets[named] = None
        for old in list(self._sets)[:-MAX_ELECTORATES]:
            del self._sets[old]

    def second(self, follows: Callable[[PeerId], bool], is_gone: Callable[[PeerId], bool]) -> bool:
        """Whether most others of one set of electors are such.

        Args:
            follows: whether a peer follows the lineage in question.
            is_gone: whether its process has certainly ended: it counts for neither side.
        """
        return not self._sets or any(self._most(one, follows, is_gone) for _, one in self._sets)

    def _most(
        self,
        electors: frozenset[PeerId],
        follows: Callable[[PeerId], bool],
        is_gone: Callable[[PeerId], bool],
    ) -> bool:
        there = [peer for peer in electors if peer == self._me or not is_gone(peer)]
        following = [peer for peer in there if peer != self._me and follows(peer)]
        first = min(electors, key=lambda peer: rank("elector", peer), default=None)
        return 2 * len(following) + (first in following) > len(there)
