"""Who contributed how much to the steps that this volunteer has closed: its own count, by member.

The decree of a step is in force by the electors' votes, and the plan behind it says whose
microbatches the step has: nobody's word is needed, and nothing is told to others. A version counts
once: what a roll-back repeats was counted already. Kept on disk, with the names that members go by.
"""

import math
from pathlib import Path
from typing import Final

from client.store.persisted import Persisted
from client.store.records import KeptContributions
from protocol.ids import PeerId
from protocol.membership.membership import Membership
from protocol.pipeline.effects import Committed

MAX_COUNTED: Final = 4096
"""Members that are remembered; of more, those with the least work are forgotten."""
MAX_NAMES: Final = 2048
LOOK_EVERY_S: Final = 5.0
"""How often names are looked at."""


class Contributions:
    """See the module's docstring; it goes on with what the file of ``path`` holds, if any."""

    def __init__(self, me: PeerId, membership: Membership, path: Path | None) -> None:
        self._me, self._membership = me, membership
        self._file = Persisted(path, KeptContributions)
        kept = self._file.peek() or KeptContributions()
        self._versions, self._counts = dict(kept.versions), dict(kept.counts)
        self._names = dict(kept.names)
        self._looked_at = -math.inf

    def closed(self, committed: Committed) -> None:
        if committed.version <= self._versions.get(committed.stage, 0):
            return
        self._versions[committed.stage] = committed.version
        for peer, more in zip(committed.roll, committed.shares, strict=True):
            if more:
                self._counts[peer] = self._counts.get(peer, 0) + more
        while len(self._counts) > MAX_COUNTED:
            del self._counts[min(self._counts, key=lambda peer: (self._counts[peer], peer))]

    def tick(self, now: float) -> None:
        """Note the names of the members, if it is time to (monotonic seconds); one that has none
        any more goes by none."""
        if now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        for member in self._membership.roster.members():
            self._names.pop(member.peer, None)
            if member.advert.nickname:
                self._names[member.peer] = member.advert.nickname
        while len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]

    @property
    def own(self) -> int:
        return self._counts.get(self._me, 0)

    def counts(self) -> dict[PeerId, int]:
        """Return the microbatches by member; expelled members are left out."""
        out = self._membership.verdicts
        return {peer: count for peer, count in self._counts.items() if peer not in out}

    def name(self, peer: PeerId) -> str:
        """Return the name that a member goes by, or went by when it was here; empty: none."""
        return self._names.get(peer, "")

    def names(self, most: int) -> dict[PeerId, str]:
        """Return the names of the ``most`` members seen last."""
        return dict(list(self._names.items())[-most:])

    def save(self) -> None:
        self._file.keep(KeptContributions(self._versions, self._counts, self._names))
