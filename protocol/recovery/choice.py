"""Chooses the version to roll back to: the newest that every stage has on a live disk.

Pure functions of the members' stored records: equal records give equal choices.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from protocol.ids import PeerId, rank
from protocol.recovery.stored import Copy, Lineage, Stored, begun, belongs
from protocol.wire.fields import MAX_NUMBER

SEED = Lineage()
"""What a volunteer follows that has followed no lineage yet."""
Weigh = Callable[[PeerId, Copy], int]
"""Returns the weight of an author's claim about a copy; 0: it does not count."""
Witness = Callable[[PeerId], bool]
"""Whether an author counts as a witness of its own: invented members repeat what one says."""
Weighed = tuple[int, PeerId, bytes]
"""Weight, author, and the hash that is named."""


class Claims:
    """What members say of versions, each claim with its weight.

    Of several hashes of one stage's version, the one that most of the claims with the highest
    weight name counts; on a tie our own. A single damaged or lying copy thus decides nothing if
    there is another.

    Args:
        stored: each peer's stored record.
        lineage: its versions alone count; None: those of any.
        weigh: weight of each claim.
        me: ourselves, for ties.
        witness: tells which authors count as witnesses.
    """

    def __init__(
        self,
        stored: Mapping[PeerId, Stored],
        lineage: Lineage | None = None,
        weigh: Weigh = lambda _author, _copy: 1,
        me: PeerId | None = None,
        witness: Witness = lambda _author: True,
    ) -> None:
        self._said: dict[int, dict[int, list[Weighed]]] = {}
        """By version and stage."""
        self._me, self._witness = me, witness
        for author, one in stored.items():
            for copy in one.copies:
                if lineage is not None and not belongs(copy.version, one.lineage, lineage):
                    continue
                if weight := weigh(author, copy):
                    by_stage = self._said.setdefault(copy.version, {})
                    by_stage.setdefault(copy.stage, []).append((weight, author, copy.hash))

    def witnesses(self, version: int) -> int:
        """Return how many witnesses name a version of any stage."""
        said = self._said.get(version, {}).values()
        return sum(map(self._witness, {author for words in said for _, author, _ in words}))

    def newest(self, reached: int | None = None, stages: int = 0) -> int:
        """Return the newest version that somebody has, of each of the first ``stages``.

        Args:
            reached: newest version possible as far as we have seen; for later ones a single
                witness is not enough. None: we have not seen the lineage trained.
            stages: their number.
        """
        there = self.whole(stages)
        known = (v for v in there if reached is None or v <= reached or self.witnesses(v) > 1)
        return max(known, default=0)

    def whole(self, stages: int) -> list[int]:
        """Return the versions that somebody has, of each of the first ``stages``."""
        return [v for v, of in self._said.items() if all(s in of for s in range(stages))]

    def weight(self, version: int) -> int:
        """Return the weight of the heaviest claim to a version, of the stage where it is least."""
        return min(max(word[0] for word in words) for words in self._said[version].values())

    def newest_whole(self, stages: int, reached: int | None = None) -> Lineage:
        """Return the newest complete version as a lineage that begins there; ``stages`` and
        ``reached`` are as for ``newest``."""
        if not (version := self.newest(reached, stages)):
            return SEED
        return Lineage(0, version, self.hashes(version))

    def hashes(self, version: int) -> tuple[bytes, ...]:
        """Return the believed hashes of a version, by stage, of the stages that have it."""
        of = sorted(self._said.get(version, {}).items())
        return tuple(self._believed(words) for _, words in of)

    def _believed(self, words: list[Weighed]) -> bytes:
        heaviest = max(weight for weight, _, _ in words)
        named = [(author, digest) for weight, author, digest in words if weight == heaviest]
        count = Counter(digest for _, digest in named)
        return max(count, key=lambda of: (count[of], (self._me, of) in named, of))


def order(lineage: Lineage) -> tuple[int, int, int]:
    """Return the sort key of lineages: of two after equally many roll-backs the one that undoes
    less is the later one."""
    return lineage.number, lineage.version, lineage.era


def next_era(
    lineage: Lineage, target: Lineage, me: PeerId, seq: int, electors: tuple[PeerId, ...]
) -> Lineage:
    """Return ``target`` as the lineage after ``lineage``, decided by ``me``, with these first
    ``electors``. The run's first one comes after no roll-back.

    ``seq`` differs each time: who decides the same again, because nobody has followed, begins
    another lineage: others may have made versions of the first one.

    The number does not leave its range.
    """
    first = lineage == SEED and not target.version
    number = 0 if first else min(lineage.number + 1, MAX_NUMBER)
    return begun(number, target.version, target.hashes, electors, rank("decides", me, seq))


def holders(stored: Mapping[PeerId, Stored], lineage: Lineage, stage: int) -> list[PeerId]:
    """Return the peers that have the state of ``stage`` at the start of ``lineage``, by peer id.

    ``stored`` has each peer's stored record.
    """
    if stage >= len(lineage.hashes):
        return []
    return sorted(
        peer
        for peer, one in stored.items()
        if any(
            (copy.stage, copy.version, copy.hash) == (stage, lineage.version, lineage.hashes[stage])
            for copy in one.copies
        )
    )
