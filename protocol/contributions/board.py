"""The board: who contributed how much, by what at least two other members of the stage say.

A member's own word about itself does not count. Of several the median counts, of two the lower. So
one liar cannot raise anybody; in a stage of three it can lower another, and a majority can say
anything. What was vouched for once stays when its vouchers are gone, until others vouch again.

State: the last vouched counts. No clock, no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.contributions.account import lower_median
from protocol.contributions.record import Counts
from protocol.ids import PeerId

LEAST_VOUCHERS: Final = 2
MAX_KEPT: Final = 4096
"""Vouched counts that are remembered; of more, the smallest are forgotten."""

MayVouch = Callable[[int, PeerId], bool]
"""Whether a member may speak about a stage."""


@dataclass(frozen=True, slots=True)
class Vouched:
    """A member's microbatches in one stage, and how many others say so."""

    peer: PeerId
    stage: int
    microbatches: int
    vouchers: int


@dataclass(frozen=True, slots=True)
class Contributor:
    """A member's line on the board."""

    peer: PeerId
    microbatches: int
    """Vouched for, over all stages; each stage counts for itself."""
    vouchers: int
    """Others that vouch for them, in the stage where they are fewest; 0: nothing is vouched for."""
    unvouched: int
    """Said by one other alone."""


class Board:
    """See the module's docstring."""

    def __init__(self, kept: Iterable[Vouched] = ()) -> None:
        self._kept = {(one.peer, one.stage): one for one in kept}
        self._alone: dict[tuple[PeerId, int], int] = {}

    def update(self, said: Mapping[PeerId, Counts], may_vouch: MayVouch) -> None:
        """Take the present records.

        Args:
            said: by author, our own among them.
            may_vouch: who may speak about which stage.
        """
        words: dict[tuple[PeerId, int], list[int]] = {}
        for author, counts in said.items():
            for of in counts.stages:
                for member in of.members if may_vouch(of.stage, author) else ():
                    if member.peer != author:
                        key = PeerId(member.peer), of.stage
                        words.setdefault(key, []).append(member.microbatches)
        self._alone = {key: found[0] for key, found in words.items() if len(found) == 1}
        for (peer, stage), found in words.items():
            if len(found) >= LEAST_VOUCHERS:
                vouched = Vouched(peer, stage, lower_median(found), len(found))
                self._kept[peer, stage] = vouched
        self._forget_least()

    def kept(self) -> tuple[Vouched, ...]:
        """Return what is remembered when everybody is gone."""
        return tuple(self._kept[key] for key in sorted(self._kept))

    def contributors(self, without: Callable[[PeerId], bool]) -> list[Contributor]:
        """Return the lines of the board, the most work first.

        Args:
            without: the members that are left out, because they are expelled.
        """
        alone = {key: n for key, n in self._alone.items() if key not in self._kept}
        found = []
        for peer in sorted({peer for peer, _ in (*self._kept, *alone)}):
            if without(peer):
                continue
            stages = [one for one in self._kept.values() if one.peer == peer]
            total = sum(one.microbatches for one in stages)
            vouchers = min((one.vouchers for one in stages), default=0)
            unvouched = sum(n for (who, _), n in alone.items() if who == peer)
            found.append(Contributor(peer, total, vouchers, unvouched))
        return sorted(found, key=lambda one: (-one.microbatches, -one.unvouched, one.peer))

    def _forget_least(self) -> None:
        surplus = len(self._kept) - MAX_KEPT
        if surplus > 0:
            least = sorted(self._kept.values(), key=lambda one: (one.microbatches, one.peer))
            for one in least[:surplus]:
                del self._kept[one.peer, one.stage]
