"""Evaluates signed records about checkpoints for an observer, which has worked with nobody.

Any admitted peer can claim anything, so claims are weighed: those of a stage's serving replicas
count before those of other peers with copies. A version counts if it is named for every stage; its
hash in a stage is the one that most of the claims with the highest weight name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from protocol.ids import PeerId
from protocol.limits import MAX_STEP
from protocol.recovery.stored import Lineage, Stored, belongs
from protocol.view import SwarmView

MAX_VERSIONS: Final = 4
"""Versions tried at a time: the best may have been deleted since."""
MAX_DONORS: Final = 32
"""Of one stage at one version."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version that is claimed to be complete: by stage, its hash and the peers that claim to have
    it."""

    version: int
    hashes: tuple[bytes, ...]
    donors: tuple[tuple[PeerId, ...], ...]


class Witnesses:
    """See the module's docstring.

    Args:
        stored: the newest stored record of each author, its signature verified.
        distrusted: peers that have served something else than they claimed; ignored.
    """

    def __init__(
        self,
        stored: Mapping[PeerId, Stored],
        view: SwarmView,
        distrusted: frozenset[PeerId] = frozenset(),
    ) -> None:
        self._stored = {p: one for p, one in stored.items() if p not in distrusted}
        self._stages = range(len(view.stages))
        self._serving = [{replica.peer for replica in view.serving(s)} for s in self._stages]
        committed = (view.committed(s) for s in self._stages if view.serving(s))
        self._reached = min(committed, default=MAX_STEP)

    def candidates(self) -> list[Candidate]:
        """Return the best complete versions, the best first: those that a replica of every stage
        has on its disk, then the newest."""
        whole = [version for version in self._versions() if self._rank(version) > 0]
        whole.sort(key=lambda version: (self._rank(version), version), reverse=True)
        return [self._candidate(version) for version in whole[:MAX_VERSIONS]]

    def _versions(self) -> set[int]:
        """Stages advance together, so a version too far ahead of another stage's is a false
        claim."""
        return {version for _, version in self._named if version <= self._reached}

    def _rank(self, version: int) -> int:
        """2: a replica of every stage names it; 1: some peer of every stage does; 0: a stage has
        none."""
        names = [self._named.get((stage, version), {}) for stage in self._stages]
        if not names or not all(names):
            return 0
        return 1 + all(self._serving[s] & names[s].keys() for s in self._stages)

    def _candidate(self, version: int) -> Candidate:
        hashes, donors = [], []
        for stage in self._stages:
            said = self._named[stage, version]
            by_replicas = Counter(said[p] for p in said.keys() & self._serving[stage])
            by_all = Counter(said.values())
            chosen = max(by_all, key=lambda h: (by_replicas[h], by_all[h], h))
            having = sorted(p for p, digest in said.items() if digest == chosen)
            having.sort(key=lambda p: p not in self._serving[stage])
            hashes.append(chosen)
            donors.append(tuple(having[:MAX_DONORS]))
        return Candidate(version, tuple(hashes), tuple(donors))

    @cached_property
    def _named(self) -> dict[tuple[int, int], dict[PeerId, bytes]]:
        """By stage and version: the peers that have it, and the hash."""
        lineage, named = self._lineage, dict[tuple[int, int], dict[PeerId, bytes]]()
        for peer, one in self._stored.items():
            for copy in one.copies:
                if copy.version and belongs(copy.version, one.lineage, lineage):
                    named.setdefault((copy.stage, copy.version), {})[peer] = copy.hash
        return named

    @property
    def _lineage(self) -> Lineage:
        """The lineage that most replicas follow; without any, that of most peers with copies."""
        replicas = set().union(*self._serving)
        heard = [one.lineage for peer, one in self._stored.items() if peer in replicas]
        count = Counter(heard or [one.lineage for one in self._stored.values()])
        return max(count, key=lambda lineage: (count[lineage], lineage), default=Lineage())
