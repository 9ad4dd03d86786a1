"""Evaluates signed records about checkpoints for an observer, which has worked with nobody.

Any admitted peer can claim anything, so claims are weighed: those of a stage's serving replicas
count before those of other peers with copies. A version counts if it is named for every stage; its
hash in a stage is the one that most of the claims with the highest weight name.
"""

from collections import Counter
from collections.abc import Mapping
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


class Witnesses:
    """See the module's docstring.

    ``stored``: the newest stored record of each author, its signature verified.
    """

    def __init__(self, stored: Mapping[PeerId, Stored], view: SwarmView) -> None:
        self._stored = stored
        self._serving = view.replicas()
        self._claims = Claims(self._stored, self._lineage, self._weigh)
        committed = (view.committed(s) for s, there in enumerate(self._serving) if there)
        self._reached = min(committed, default=MAX_STEP)

    def candidates(self) -> list[Candidate]:
        """Return the best complete versions, the best first: those that a replica of every stage
        has on its disk, then the newest. Stages advance together, so a version too far ahead of
        another stage's is a false claim."""
        stages = len(self._serving)
        whole = [v for v in self._claims.whole(stages) if 0 < v <= self._reached]
        whole.sort(key=lambda v: (self._claims.weight(v) >= REPLICA, v), reverse=True)
        return [self._candidate(version) for version in whole[:MAX_VERSIONS]]

    def _weigh(self, author: PeerId, copy: Copy) -> int:
        there = self._serving[copy.stage] if copy.stage < len(self._serving) else ()
        return REPLICA if author in there else 1

    def _candidate(self, version: int) -> Candidate:
        hashes = self._claims.hashes(version)
        copies = (Copy(stage, version, digest) for stage, digest in enumerate(hashes))
        return Candidate(version, hashes, tuple(map(self._donors, copies)))

    def _donors(self, copy: Copy) -> tuple[PeerId, ...]:
        having = [peer for peer, said in self._stored.items() if copy in said.copies]
        return tuple(sorted(having, key=lambda p: (-self._weigh(p, copy), p))[:MAX_DONORS])

    @property
    def _lineage(self) -> Lineage:
        """The lineage that most replicas follow; without any, that of most peers with copies."""
        replicas = frozenset[PeerId]().union(*self._serving)
        heard = [one.lineage for peer, one in self._stored.items() if peer in replicas]
        count = Counter(heard or [one.lineage for one in self._stored.values()])
        return max(count, key=lambda lineage: (count[lineage], lineage), default=Lineage())
