"""Which version to roll back to: the newest that every stage has on a disk within reach.

Pure functions of the members' stored records; everybody who has the same ones chooses the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from protocol.ids import PeerId, rank
from protocol.restore.stored import ERA_BITS, Lineage, Stored

SEED = Lineage()


def newest_whole(
    stored: Mapping[PeerId, Stored], stages: int, lineage: Lineage, reached: int | None = None
) -> Lineage:
    """Return the newest version of ``lineage`` that is complete, as where another could begin.

    Of a version's hashes of one stage, the one that most volunteers have counts: a single damaged
    or lying copy decides nothing where there is another.

    Args:
        reached: the newest version there can be as far as we have seen: of later ones a single
            volunteer's word does not count. None: we have not seen the lineage trained.
    """
    held: dict[int, list[Counter[bytes]]] = {}
    authors: dict[int, set[PeerId]] = {}
    for author, one in stored.items():
        for copy in one.copies:
            if belongs(copy.version, one.lineage, lineage):
                by_stage = held.setdefault(copy.version, [Counter() for _ in range(stages)])
                by_stage[copy.stage][copy.hash] += 1
                authors.setdefault(copy.version, set()).add(author)
    whole = [version for version, by_stage in held.items() if version and all(by_stage)]
    if reached is not None:
        whole = [v for v in whole if v <= reached or len(authors[v]) > 1]
    if not whole:
        return SEED
    version = max(whole)
    hashes = (max(count, key=lambda h: (count[h], h)) for count in held[version])
    return Lineage(0, version, tuple(hashes))


def newest_of_any(stored: Mapping[PeerId, Stored], lineage: Lineage) -> int:
    """Return the newest version of ``lineage`` that any stage has somewhere."""
    versions = [
        copy.version
        for one in stored.values()
        for copy in one.copies
        if belongs(copy.version, one.lineage, lineage)
    ]
    return max(versions, default=0)


def next_era(lineage: Lineage, target: Lineage, me: PeerId) -> Lineage:
    """Return ``target`` as the lineage after ``lineage``, decided by ``me``."""
    number = lineage.number + 1
    low = int.from_bytes(rank("era", number, target.version, me)[:4], "big")
    return Lineage((number << ERA_BITS) | low, target.version, target.hashes)


def holders(stored: Mapping[PeerId, Stored], lineage: Lineage, stage: int) -> list[PeerId]:
    """Return who has the state of a stage from which a lineage begins, in order of peer id."""
    if not lineage.version:
        return []
    return sorted(
        peer
        for peer, one in stored.items()
        if any(
            (copy.stage, copy.version, copy.hash) == (stage, lineage.version, lineage.hashes[stage])
            for copy in one.copies
        )
    )


def belongs(version: int, of: Lineage, lineage: Lineage) -> bool:
    """Whether a copy made in ``of`` is a version of ``lineage``: what is older than both, both
    share."""
    return of.era == lineage.era or version <= min(of.version, lineage.version)
