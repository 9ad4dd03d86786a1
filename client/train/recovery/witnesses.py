"""Evaluates signed records about checkpoints for an observer, which has worked with nobody.

Any admitted peer can claim anything, so claims are weighed: those of a stage's serving replicas
count before those of other peers with copies. A version counts if it is named for every stage; its
hash in a stage is the one that most of the claims with the highest weight name.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId
from protocol.limits import MAX_STEP
from protocol.recovery.choice import Claims
from protocol.recovery.stored import Copy, Lineage, Stored
from protocol.view import SwarmView

MAX_VERSIONS: Final = 4
"""Versions tried at a time: the best may have been deleted since."""
MAX_DONORS: Final = 32
"""Of one stage at one version."""
REPLICA: Final = 2
"""Weight of a claim of a stage's serving replica; that of another peer weighs 1."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version that is claimed to be complete: by stage, its hash and the peers that claim to have
    it."""

    version: int
    hashes: tuple[bytes, ...]
    donors: tuple[tuple[PeerId, ...], ...]


def candidates(stored: Mapping[PeerId, Stored], view: SwarmView) -> list[Candidate]:
    """Return the best complete versions by the newest verified record of each author, in order:
    those that a replica of every stage has on its disk, then the newest. Stages advance together,
    so a version too far ahead of another stage's is a false claim."""
    serving = view.replicas()

    def weigh(author: PeerId, copy: Copy) -> int:
        there = serving[copy.stage] if copy.stage < len(serving) else ()
        return REPLICA if author in there else 1

    def donors(copy: Copy) -> tuple[PeerId, ...]:
        having = [peer for peer, said in stored.items() if copy in said.copies]
        return tuple(sorted(having, key=lambda p: (-weigh(p, copy), p))[:MAX_DONORS])

    def candidate(version: int) -> Candidate:
        hashes = claims.hashes(version)
        copies = (Copy(stage, version, digest) for stage, digest in enumerate(hashes))
        return Candidate(version, hashes, tuple(map(donors, copies)))

    claims = Claims(stored, _followed(stored, serving), weigh)
    reached = min((view.committed(s) for s, there in enumerate(serving) if there), default=MAX_STEP)
    whole = [v for v in claims.whole(len(serving)) if 0 < v <= reached]
    whole.sort(key=lambda v: (claims.weight(v) >= REPLICA, v), reverse=True)
    return list(map(candidate, whole[:MAX_VERSIONS]))


def _followed(stored: Mapping[PeerId, Stored], serving: Sequence[frozenset[PeerId]]) -> Lineage:
    """Return the lineage that most replicas follow; without any, that of most peers with copies."""
    replicas = frozenset[PeerId]().union(*serving)
    heard = [one.lineage for peer, one in stored.items() if peer in replicas]
    count = Counter(heard or [one.lineage for one in stored.values()])
    return max(count, key=lambda lineage: (count[lineage], lineage), default=Lineage())
