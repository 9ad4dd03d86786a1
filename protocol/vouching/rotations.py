"""The rotations that one volunteer knows of: which keys were replaced, and what is left of them.

A replaced key counts for nothing but what its rotation names: the members that it has vouched for,
and those that it has expelled. So nothing has to be known of the time at which anything was signed,
and all who know the rotation decide alike, in whatever order they heard of things.

Two different rotations of one key contradict each other. Then the place is void: the key, both new
ones and all that were let in through it are out until somebody above invites them again. Whoever
has stolen an old key cannot act with it, nor take the place; it can make the place void, and so can
the owner if the thief was first.

State: the rotations, two of a key at most, bounded. No I/O here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from protocol.ids import PeerId, short
from protocol.vouching.chain import Chain, Rotation

MAX_KNOWN: Final = 256


class Rotations:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._of: dict[PeerId, list[Rotation]] = {}

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The chains of the new keys, for members that may not know of them."""
        return tuple(one.chain for known in self._of.values() for one in known)

    def take(self, rotation: Rotation) -> bool:
        """Take a rotation that was verified; return whether it is news."""
        known = self._of.setdefault(PeerId(rotation.said.old), [])
        if len(known) > 1 or any(one.said == rotation.said for one in known):
            return False
        known.append(rotation)
        if sum(map(len, self._of.values())) > MAX_KNOWN:
            return self._drop() is not rotation
        return True

    def is_replaced(self, key: PeerId) -> bool:
        """Whether a key has handed its place to another one, or several."""
        return key in self._of

    def names_expelled(self, author: PeerId, member: PeerId) -> bool:
        """Whether an expulsion counts by what is known of its author's key."""
        known = self._known(author)
        return not known or (len(known) == 1 and member in known[0].said.expelled)

    def line(self, key: PeerId) -> list[PeerId]:
        """Return a key and those that have taken its place, one after the other."""
        line = [key]
        while len(known := self._known(line[-1])) == 1:
            new = PeerId(known[0].said.new)
            if new in line:
                break
            line.append(new)
        return line

    def why_out(self, keys: Sequence[PeerId]) -> str:
        """Return why a chain does not count any more; empty: it does.

        Args:
            keys: those that it leads through, the founder's first and its owner's last.
        """
        for key, named in zip_longest(keys, keys[1:]):
            known = self._known(key)
            if not known:
                continue
            if len(known) > 1:
                return (
                    f"two keys claim the place of {short(key)}, so neither has it: whoever invited "
                    "that member has to invite it again"
                )
            said = known[0].said
            if named is None:
                return f"this key was replaced by {short(PeerId(said.new))} and counts no more"
            if named != said.new and named not in said.members:
                return f"{short(key)} was replaced, and did not name {short(named)} when it was"
        return ""

    def concerning(self, keys: Sequence[PeerId]) -> tuple[Chain, ...]:
        """Return the rotations of some keys, as proof."""
        return tuple(one.chain for key in keys for one in self._known(key))

    def _known(self, key: PeerId) -> Sequence[Rotation]:
        return self._of.get(key, ())

    def _drop(self) -> Rotation:
        """Forget the rotation that is furthest from the founder, the newest of several: nobody can
        crowd out those of members above."""
        known = (one for those in self._of.values() for one in those)
        worst = max(known, key=lambda one: (one.depth, one.said.issued))
        old = PeerId(worst.said.old)
        self._of[old].remove(worst)
        if not self._of[old]:
            del self._of[old]
        return worst
