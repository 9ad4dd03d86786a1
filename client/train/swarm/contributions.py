"""Who contributed how much: keeps our accounts, publishes them, and shows what others vouch for.

An account is kept of every stage that we hold. Those of the stages that we serve are published once
in a while. The board is made from everybody's records and kept on disk, with the names that members
go by. Nothing else of the node depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from client.store.persisted import Persisted
from client.store.records import KeptContributions
from protocol.contributions.account import StageAccount
from protocol.contributions.board import Board, Contributor
from protocol.contributions.record import (
    COUNTED,
    MAX_COUNTED,
    Counts,
    StageCounts,
    encode_counts,
    parse_counts,
)
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.membership.membership import Membership, Proves
from protocol.membership.view import MembershipEffect, RecordChanged, RecordGone
from protocol.pipeline.effects import Committed

MAX_NAMES: Final = 2048
LOOK_EVERY_S: Final = 5.0
"""How often the board is made anew in a small swarm."""
LOOK_AT_PER_S: Final = 20
"""Members of a large one, for which it is made anew more rarely."""
REFRESH_S: Final = 200.0
"""A record is published again after a third of its life, changed or not."""


class Contributions:
    """See the module's docstring.

    Args:
        me: our own id.
        manifest: of the run.
        membership: knows the members and their records.
        perform: performs its effects.
        proves: returns whom work has proven to us; None: we have closed no step.
    """

    def __init__(
        self,
        me: PeerId,
        manifest: Manifest,
        membership: Membership,
        perform: Callable[[list[MembershipEffect]], None],
        proves: Callable[[], Proves | None],
    ) -> None:
        self._me, self._membership, self._perform, self._proves = me, membership, perform, proves
        self._stages, self._per_step = manifest.stage_count, manifest.microbatches_per_step
        self._accounts: dict[int, StageAccount] = {}
        self._file: Persisted[KeptContributions] | None = None
        self._board = Board()
        self._names: dict[PeerId, str] = {}
        self._records: dict[PeerId, Counts] = {}
        """The present records by author, our own among them."""
        self._said = Counts()
        self._said_at = self._looked_at = -math.inf

    def keep_in(self, path: Path) -> None:
        """Go on with what a file holds, and keep it there."""
        self._file = Persisted(path, KeptContributions)
        kept = self._file.peek() or KeptContributions()
        self._accounts = {one.stage: one for one in kept.stages}
        self._board, self._names = Board(kept.board), dict(kept.names)

    def closed(self, committed: Committed) -> None:
        """A stage of ours has committed a step."""
        shares = dict(zip(committed.roll, committed.shares, strict=True))
        account = self._accounts.setdefault(
            committed.stage, StageAccount(committed.stage, self._per_step)
        )
        account.closed(committed.version, shares)

    def record(self, record: RecordChanged | RecordGone) -> None:
        """Handle a member's counts (our own alike), or their expiry."""
        if isinstance(record, RecordGone):
            self._records.pop(PeerId(record.key), None)
            return
        said = (record.body, record.key, record.signer, self._stages, self._per_step)
        self._records[record.signer] = parse_counts(*said)

    def tick(self, served: Collection[int], now: float, wall: float) -> None:
        """Make the board anew and publish our accounts, as far as each is due.

        Args:
            served: the stages that we serve.
            now: monotonic seconds.
            wall: Unix seconds.
        """
        rest_s = max(LOOK_EVERY_S, len(self._membership.roster) / LOOK_AT_PER_S)
        if now < self._looked_at + rest_s:
            return
        self._looked_at, may_vouch = now, self._may_vouch()
        for stage in served:
            if (account := self._accounts.get(stage)) is not None:
                account.take_over(_of_stage(self._records, stage, self._me, may_vouch))
        self._publish(served, now, wall)
        roster = self._membership.roster
        self._board.update(self._records, may_vouch, lambda peer: roster.member(peer) is not None)
        self._learn_names()

    @property
    def own(self) -> int:
        """Our microbatches in committed steps, by our own count."""
        return sum(account.counts.get(self._me, 0) for account in self._accounts.values())

    def contributors(self) -> list[Contributor]:
        """Return the lines of the board, the most work first; expelled members are left out."""
        return self._board.contributors(self._membership.verdicts.__contains__)

    def name(self, peer: PeerId) -> str:
        """Return the name that a member goes by, or went by when it was here; empty: none."""
        return self._names.get(peer, "")

    def names(self, most: int) -> dict[PeerId, str]:
        """Return the names of the ``most`` members seen last."""
        return dict(list(self._names.items())[-most:])

    def save(self) -> None:
        """Write the file."""
        if self._file is not None:
            stages = tuple(account for _, account in sorted(self._accounts.items()))
            self._file.keep(KeptContributions(stages, self._board.kept(), self._names))

    def _publish(self, served: Collection[int], now: float, wall: float) -> None:
        counts = self._counts(served)
        fresh = counts != self._said and now >= self._said_at + gap_s(len(self._membership.roster))
        due = fresh or now >= self._said_at + REFRESH_S
        if due and counts.stages and self._membership.described:
            self._said, self._said_at = counts, now
            self._perform(self._membership.say(COUNTED, encode_counts(counts), wall))

    def _counts(self, served: Collection[int]) -> Counts:
        known = sorted(stage for stage in served if stage in self._accounts)
        most = MAX_COUNTED // max(1, len(known))
        stages = (self._accounts[stage].said(most) for stage in known)
        return Counts(tuple(one for one in stages if one.members))

    def _may_vouch(self) -> Callable[[int, PeerId], bool]:
        """Return who may speak about which stage: those that serve it; of a stage whose steps we
        have closed ourselves, only those whose work was in one."""
        roster, proves = self._membership.roster, self._proves()
        serving = {
            stage: {replica.peer for replica in roster.serving(stage)}
            for stage in range(self._stages)
        }

        def may_vouch(stage: int, author: PeerId) -> bool:
            if author not in serving[stage]:
                return False
            if author == self._me or proves is None or stage not in self._accounts:
                return True
            return proves(author)

        return may_vouch

    def _learn_names(self) -> None:
        """Note the names of the members; one that has none any more goes by none."""
        for member in self._membership.roster.members():
            self._names.pop(member.peer, None)
            if member.advert.nickname:
                self._names[member.peer] = member.advert.nickname
        while len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]


def _of_stage(
    said: dict[PeerId, Counts],
    stage: int,
    me: PeerId,
    may_vouch: Callable[[int, PeerId], bool],
) -> dict[PeerId, StageCounts]:
    """Return the others' counts of a stage."""
    return {
        author: of
        for author, counts in said.items()
        for of in counts.stages
        if of.stage == stage and author != me and may_vouch(stage, author)
    }


def gap_s(members: int) -> float:
    """Return the seconds between two records of one author: longer in larger swarms, so that the
    whole swarm sends two a second at most until 400 members."""
    return min(REFRESH_S, max(20.0, members / 2))
