"""Chooses the version to roll back to: the newest that every stage has on a live disk.

Pure functions of the members' stored records: equal records give equal choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from protocol.ids import PeerId, rank
from protocol.recovery.stored import ERA_BITS, MAX_NUMBER, Copy, Lineage, Stored, belongs

SEED = Lineage()
"""What a volunteer follows that has followed no lineage yet."""
LAST_ERA = ((MAX_NUMBER + 1) << ERA_BITS) - 1
Weigh = Callable[[PeerId, Copy], int]
"""Returns the weight of an author's claim about a copy; 0: it does not count."""
Witness = Callable[[PeerId], bool]
"""Whether an author counts as a witness of its own: invented members repeat what one says."""
Weighed = tuple[int, bool, bytes]
"""Weight, whether it is our own, and the hash that is named."""


def newest_whole(
    stored: Mapping[PeerId, Stored],
    stages: int,
    lineage: Lineage,
    reached: int | None = None,
    weigh: Weigh = lambda _author, _copy: 1,
    me: PeerId | None = None,
    witness: Witness = lambda _author: True,
) -> Lineage:
    """Return the newest complete version of ``lineage``, as a lineage that begins there.

    Of several hashes of one stage's version, the one that most of the claims with the highest
    weight name counts; on a tie our own. A single damaged or lying copy thus decides nothing if
    there is another.

    Args:
        stored: each peer's stored record.
        stages: number of stages.
        lineage: the lineage searched.
        reached: newest version possible as far as we have seen; for later ones a single witness is
            not enough. None: we have not seen the lineage trained.
        weigh: weight of each claim.
        me: ourselves, for ties.
        witness: tells which authors count as witnesses.
    """
    said: dict[int, list[list[Weighed]]] = {}
    authors: dict[int, set[PeerId]] = {}
    for author, one in stored.items():
        for copy in one.copies:
            if copy.stage >= stages or not belongs(copy.version, one.lineage, lineage):
                continue
            if weight := weigh(author, copy):
                by_stage = said.setdefault(copy.version, [[] for _ in range(stages)])
                by_stage[copy.stage].append((weight, author == me, copy.hash))
                authors.setdefault(copy.version, set()).add(author)
    whole = [version for version, by_stage in said.items() if version and all(by_stage)]
    if reached is not None:
        whole = [v for v in whole if v <= reached or sum(map(witness, authors[v])) > 1]
    if not whole:
        return SEED
    version = max(whole)
    return Lineage(0, version, tuple(map(_believed, said[version])))


def believed(
    stored: Mapping[PeerId, Stored], version: int, stages: int, weigh: Weigh, me: PeerId
) -> tuple[bytes, ...]:
    """Return the believed hashes of a version of any lineage, by stage.

    There are fewer than ``stages`` if some stages have no copy.

    Args:
        stored: each peer's stored record.
        version: the version.
        stages: number of stages.
        weigh: weight of each claim.
        me: ourselves, for ties.
    """
    said: dict[int, list[Weighed]] = {}
    for author, one in stored.items():
        for copy in one.copies:
            if copy.version == version and (weight := weigh(author, copy)):
                said.setdefault(copy.stage, []).append((weight, author == me, copy.hash))
    return tuple(_believed(said[stage]) for stage in range(stages) if stage in said)


def order(lineage: Lineage) -> tuple[int, int, int]:
    """Return the sort key of lineages: of two after equally many roll-backs the one that undoes
    less is the later one."""
    return lineage.number, lineage.version, lineage.era


def _believed(words: list[Weighed]) -> bytes:
    """Return the hash that most of the claims with the highest weight name."""
    heaviest = max(weight for weight, _, _ in words)
    count = Counter(digest for weight, _, digest in words if weight == heaviest)
    ours = {digest for weight, own, digest in words if own and weight == heaviest}
    return max(count, key=lambda digest: (count[digest], digest in ours, digest))


def newest_of_any(
    stored: Mapping[PeerId, Stored],
    lineage: Lineage,
    reached: int | None = None,
    weigh: Weigh = lambda _author, _copy: 1,
    witness: Witness = lambda _author: True,
) -> int:
    """Return the newest version of ``lineage`` that any stage has.

    ``stored``, ``weigh``, ``reached`` and ``witness`` are as for ``newest_whole``.
    """
    authors: dict[int, set[PeerId]] = {}
    for author, one in stored.items():
        for copy in one.copies:
            if belongs(copy.version, one.lineage, lineage) and weigh(author, copy):
                authors.setdefault(copy.version, set()).add(author)
    seen = {v for v in authors if reached is None or v <= reached}
    known = (v for v, by in authors.items() if v in seen or sum(map(witness, by)) > 1)
    return max(known, default=0)


def next_era(
    lineage: Lineage, target: Lineage, me: PeerId, seq: int, electors: tuple[PeerId, ...]
) -> Lineage:
    """Return ``target`` as the lineage after ``lineage``, decided by ``me``, with these first
    ``electors``. The run's first one comes after no roll-back.

    ``seq`` differs each time: a member that was outvoted and decides the same again begins another
    lineage, because others may have made versions of the first one.

    At the end of the range only the low bits can rise; no lineage makes an era out of range.
    """
    first = lineage == SEED and not target.version
    number = 0 if first else min(lineage.number + 1, MAX_NUMBER)
    low = int.from_bytes(rank("era", number, target.version, me, seq)[:4], "big")
    era = (number << ERA_BITS) | low
    era = min(max(era, lineage.era + 1), LAST_ERA)
    return Lineage(era, target.version, target.hashes, electors)


def holders(stored: Mapping[PeerId, Stored], lineage: Lineage, stage: int) -> list[PeerId]:
    """Return the peers that have the state of ``stage`` at the start of ``lineage``, by peer id.

    ``stored`` has each peer's stored record.
    """
    if not lineage.version or stage >= len(lineage.hashes):
        return []
    return sorted(
        peer
        for peer, one in stored.items()
        if any(
            (copy.stage, copy.version, copy.hash) == (stage, lineage.version, lineage.hashes[stage])
            for copy in one.copies
        )
    )
