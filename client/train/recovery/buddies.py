"""Keeps copies of a neighbouring stage's checkpoints, and has ours copied when we leave.

Every few seconds a task finds the stages of which we are the buddy (``protocol.transfer.buddy``).
Of each it wants the newest checkpoint that the stage's replicas name in their signed records, and
fetches it from those who name it, one at a time and with few chunks in flight, so that training is
hardly slowed. A copy counts once all of it is here; then it is stored beside our own checkpoints,
named in our record and served like them. The last replica of a stage that leaves waits until its
buddy's record names the same state. Who names a state and does not give it is not asked for a
while, and no copy replaces the newest one that was due or that the run may be rolled back to.
"""

from collections import Counter
from collections.abc import Sequence

import trio

from client.store.checkpoints import Checkpoint, CheckpointFolder
from client.train.ports import Ports
from client.train.recovery.history import History
from client.train.swarm.views import hosts
from client.train.transfer.blobs import ANSWER_S, DiskFailed, DownloadFailed, Downloads, Shelf
from client.train.transfer.state_size import data_bytes
from protocol.effects import Explain
from protocol.ids import PeerId, short
from protocol.membership.roster import Roster
from protocol.recovery.stored import Copy
from protocol.transfer.buddy import FOREIGN_KEPT, buddy, kept_by
from protocol.view import SwarmView

LOOK_S = 1.0
RETRY_S = 30.0
"""Seconds before those are asked again who did not give what they name, or before the disk is tried
again."""
WINDOW = 1
SPARE_BYTES = 256 << 20
"""Disk space that a copy leaves free for our own checkpoints."""


class Buddies:
    """See the module's docstring.

    Args:
        history: the others' records of what they have; it is told of every copy.
        roster: whose addresses say who is on another host, as a buddy should be.
    """

    def __init__(
        self,
        ports: Ports,
        folder: CheckpointFolder,
        shelf: Shelf,
        downloads: Downloads,
        history: History,
        roster: Roster,
    ) -> None:
        self._ports = ports
        self._folder, self._shelf, self._history = folder, shelf, history
        self._downloads, self._roster = downloads, roster
        self._rests_until: dict[PeerId, float] = {}
        """By peer that did not give what it names."""
        self._complaint = ""
        """About the disk; empty: copies are kept."""

    async def run(self) -> None:
        """Fetch the copies that we are to keep, until cancelled."""
        while True:
            for stage in kept_by(self._view, self._ports.me, hosts(self._roster)):
                if stage not in self._ports.held_stages.held:
                    await self._keep_newest(stage)
            await trio.sleep(LOOK_S)

    @property
    def _view(self) -> SwarmView:
        return self._ports.held_stages.view

    async def _keep_newest(self, stage: int) -> None:
        """Fetch the copy of a stage that is to be kept next, if there is one."""
        donors: list[PeerId] = []
        try:
            if (wanted := self._wanted(stage)) is None:
                return
            copy, donors = wanted
            await self._fetch(copy, donors)
        except DiskFailed as error:
            self._complain(str(error))
        except DownloadFailed as error:
            self._ports.perform(Explain("transfer", f"no copy of stage {stage}: {error}", "debug"))
        except OSError as error:
            self._complain(f"{error.strerror or error}")
        else:
            self._end_complaint()
            return
        self._rests_until |= dict.fromkeys(donors, self._ports.now() + RETRY_S)

    def _wanted(self, stage: int) -> tuple[Copy, list[PeerId]] | None:
        """Return the copy of a stage that is to be kept next, and who names it; None: there is none
        that is newer than ours. What is due comes first, then what most replicas name, then the
        newest."""
        now = self._ports.now()
        self._rests_until = {peer: at for peer, at in self._rests_until.items() if at > now}
        here = [kept.version for kept in self._folder.entries() if kept.stage == stage]
        newest, newest_due = max(here, default=0), max(filter(self._is_due, here), default=0)
        reached, said = self._reached(stage), self._named(stage)
        count = Counter(
            copy
            for peer, copies in said.items()
            for copy in copies
            if peer not in self._rests_until
            and (newest_due if self._is_due(copy.version) else newest) < copy.version <= reached
        )
        if not count:
            return None
        best = max(count, key=lambda copy: (self._is_due(copy.version), count[copy], copy))
        return best, [peer for peer, copies in said.items() if best in copies]

    def _is_due(self, version: int) -> bool:
        """Whether all stages save a version."""
        due = self._ports.manifest.policy.newest_saved(version) == version
        return due or version >= self._ports.amendments.steps

    def _named(self, stage: int) -> dict[PeerId, list[Copy]]:
        """Return what the replicas of a stage have of it, by their records."""
        replicas = {replica.peer for replica in self._view.serving(stage)}
        era, records = self._history.lineage.era, self._history.machine.known.stored
        return {
            peer: [copy for copy in records[peer].copies if copy.stage == stage]
            for peer in sorted(replicas & records.keys())
            if records[peer].lineage.era == era
        }

    def _reached(self, stage: int) -> int:
        """Return the newest version that a neighbouring stage can have, one more than ours; it
        bounds what a liar can claim."""
        view = self._view
        beside = [*view.serving(stage - 1), *view.serving(stage + 1)]
        ours = max((r.version for r in beside if r.peer == self._ports.me), default=0)
        return min(view.committed(stage), ours + 1, self._ports.amendments.steps)

    async def _fetch(self, copy: Copy, donors: Sequence[PeerId]) -> None:
        stage, version = copy.stage, copy.version
        self._folder.folder.mkdir(parents=True, exist_ok=True)
        needed_bytes = data_bytes(self._ports.manifest, stage) + SPARE_BYTES
        if problem := self._folder.problem(needed_bytes):
            raise OSError(problem)
        path = self._folder.folder / f".stage-{stage}-v{version}.buddy.tmp"
        era = self._history.lineage.era
        state = self._downloads.state(stage, version, copy.hash)
        filed = await self._downloads.fetch(state, donors, path, begins_s=ANSWER_S, window=WINDOW)
        target = await trio.to_thread.run_sync(self._folder.adopt, path, stage, version)
        if self._history.lineage.era != era:
            self._folder.set_aside(Checkpoint(stage, version, target))
            raise DownloadFailed("the run has been rolled back meanwhile")
        self._shelf.put(filed, target, temporary=False)
        self._history.stored(stage, version)
        self._folder.retain(self._protected(stage), stage=stage, keep=FOREIGN_KEPT)
        words = f"kept a copy of stage {stage} at version {version}"
        self._ports.perform(Explain("transfer", words, "debug"))

    def _protected(self, stage: int) -> set[tuple[int, int]]:
        """Return the versions to keep: those the run may be rolled back to, and the newest one
        due."""
        here = [kept.version for kept in self._folder.entries() if kept.stage == stage]
        return {*self._history.protected(), (stage, max(filter(self._is_due, here), default=0))}

    def _complain(self, problem: str) -> None:
        """Report once that there is no room, until there is again."""
        if not self._complaint:
            words = f"no copies of neighbouring stages are kept: {problem}; free space on the disk"
            self._complaint = words
            self._ports.perform(Explain("transfer", words, "warning"))

    def _end_complaint(self) -> None:
        if self._complaint:
            words = "copies of neighbouring stages are kept again"
            self._ports.perform(Explain("transfer", words, over=self._complaint))
            self._complaint = ""

    async def hand_over(self, stage: int, version: int, timeout_s: float) -> bool:
        """Wait until our buddy has a checkpoint of ours; return whether it has within
        ``timeout_s``."""
        if (keeper := self._keeper(stage)) is None:
            return False
        words = f"{short(keeper)} is to keep stage {stage} at version {version}"
        self._ports.perform(Explain("transfer", words, members=(keeper,)))
        with trio.move_on_after(timeout_s):
            while (keeper := self._keeper(stage)) is not None:
                if self._has(keeper, stage, version):
                    return True
                await trio.sleep(LOOK_S)
        return False

    def _keeper(self, stage: int) -> PeerId | None:
        return buddy(self._view, stage, hosts(self._roster))

    def _has(self, keeper: PeerId, stage: int, version: int) -> bool:
        """Whether a peer names the same state as we, by its record."""
        known = self._history.machine.known
        said = known.stored.get(keeper)
        if said is None:
            return False
        both = set(known.own_copies()).intersection(said.copies)
        return any((copy.stage, copy.version) == (stage, version) for copy in both)
