"""Drives the machine of ``protocol.recovery``: the run's history as this volunteer knows it.

It gives the machine the checkpoints on our disk and our view of the swarm, and performs its
decisions: when a new lineage begins, checkpoints of the old one are set aside and every seat
restarts. Before our line of the run is given up for another one, it fetches that one's state.
"""

import math
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from client.compute.checkpoint import CheckpointInfo
from client.store import records
from client.store.checkpoints import CheckpointFolder
from client.store.persisted import Persisted
from client.train.ports import Ports, StageHolder
from client.train.swarm.views import eras_served, live_members
from client.train.transfer.blobs import (
    ANSWER_S,
    DownloadFailed,
    Downloads,
    Filed,
    Shelf,
    unlink,
)
from client.train.transfer.inventory import stored_states
from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.membership.membership import Membership
from protocol.membership.view import RecordChanged
from protocol.pipeline.effects import Committed
from protocol.recovery.choice import holders
from protocol.recovery.effects import (
    Adopt,
    FetchLine,
    GivenUp,
    RecoveryContext,
    RecoveryEffect,
    SaveNow,
)
from protocol.recovery.evidence import Evidence, Kept
from protocol.recovery.knowledge import Knowledge
from protocol.recovery.machine import Recovery
from protocol.recovery.stored import Copy, Lineage
from protocol.view import SwarmView
from protocol.waypoints.chain import Waypoint
from protocol.wire.fields import HIGHEST_NUMBER

RETRY_S: Final = 5.0
"""Rest after the state of another line could not be fetched."""
UNREAD_S: Final = 30.0
"""Seconds after which a disk that could not be read completely is read again."""


class History:
    """See the module's docstring."""

    def __init__(
        self, ports: Ports, folder: CheckpointFolder, shelf: Shelf, downloads: Downloads
    ) -> None:
        self._ports, manifest = ports, ports.manifest
        self._stages = manifest.stage_count
        self.folder, self._shelf, self._downloads = folder, shelf, downloads
        self._lineage_file = Persisted(folder.folder / records.LINEAGE, Lineage, ports.warn)
        self._evidence_file = Persisted(folder.folder / records.EVIDENCE, Kept, ports.warn)
        longest = ports.amendments.longest
        of_no_use = partial(why_unusable, stages=manifest.stage_count, steps=longest)
        lineage = self._lineage_file.load(of_no_use) or Lineage()
        self._saved = lineage
        """The lineage that the disk names as that of its checkpoints."""
        known = Knowledge(
            ports.me,
            manifest.stage_count,
            manifest.policy.checkpoint_every,
            lineage,
            ports.amendments.steps,
            Evidence(self._evidence_file.load(), ports.me),
            manifest.founder,
        )
        self.machine = Recovery(known, int(time.time() * 1000))
        self._wanted, self._to_fetch = trio.open_memory_channel[FetchLine](math.inf)
        self._fetched: dict[Copy, Filed] = {}
        """The state of another line, verified; it is used once ours is given up."""
        self._stale = trio.Event()
        self._made: set[tuple[int, int]] = set()
        self._made_all = True  # the checkpoints found at the start are of its lineage

    @property
    def lineage(self) -> Lineage:
        """The version at which the present lineage begins."""
        return self.machine.lineage

    def proves(self, peer: PeerId) -> bool:
        """Whether a step that we have closed contains a peer's work, or a waypoint names it."""
        return self.machine.known.proves(peer)

    def is_new(self, peer: PeerId) -> bool:
        """Whether work has not proven a peer, though it could have: we have closed a step, or know
        a waypoint."""
        return self.machine.evidence.any and not self.proves(peer)

    def holders(self, stage: int) -> list[PeerId]:
        """Return the others who have the state of a stage from which the lineage begins."""
        found = holders(self.machine.known.stored_live(), self.lineage, stage)
        return [peer for peer in found if peer != self._ports.me]

    def is_kept(self, stage: int, version: int) -> bool:
        """Whether a version of our lineage lies on our disk, or on that of a live member."""
        records = (
            s for s in self.machine.known.stored_live().values() if s.lineage == self.lineage
        )
        copies = (copy for said in records for copy in said.copies)
        named = (copy for copy in copies if (copy.stage, copy.version) == (stage, version))
        return any(not self.machine.evidence.denies(copy) for copy in named)

    def protected(self) -> Collection[tuple[int, int]]:
        """Return the versions that must stay on our disk: the newest that every stage has."""
        newest = self.machine.known.newest_whole()
        return {(stage, newest.version) for stage in range(self._stages)}

    def waiting(self) -> str:
        """Describe how long and for whom the run waits before it continues from copies: ``up to 115
        s for Boris, who may have …``; empty: it does not wait."""
        waiting = self.machine.waiting
        if waiting is None:
            return ""
        if waiting.until is None:
            return waiting.what
        left_s = max(0.0, waiting.until - self._ports.now())
        return f"up to {math.ceil(left_s)} s {waiting.what}"

    def version(self) -> int:
        """Return the newest version that the swarm has, as far as we know."""
        return max(self.lineage.version, self.machine.known.newest_whole().version)

    def record(self, record: RecordChanged) -> None:
        """Handle another member's stored record, or its expiry."""
        if record.said is None:
            self.machine.forget(record.signer)
        else:
            self._perform(self.machine.receive(record.signer, record.said, self._ports.now()))

    def update(self, membership: Membership, view: SwarmView) -> None:
        """Handle a new view of the swarm; ``view`` is that of our lineage."""
        roster = membership.roster
        me, seats, saw_training = self._ports.me, self._seats, self.machine.evidence.saw_training
        context = RecoveryContext(
            live=live_members(roster, me),
            versions=self.machine.known.versions(view),
            eras=eras_served(roster, me),
            quorum=lambda now: all(one.may_roll_back(now) for one in seats.quorums()),
            ended=lambda: max((one.ended() for one in seats.quorums()), default=0),
            moved=view.moved(),
            unseen=view.unseen,
            unlinked=roster.unlinked(),
            is_gone=membership.contacts.is_gone,
            serving=view.replicas(),
            heard=roster.newest_heard,
        )
        self._perform(self.machine.update(context, self._ports.now()))
        if self.machine.evidence.saw_training and not saw_training:
            self._stale.set()

    @property
    def _seats(self) -> StageHolder:
        return self._ports.held_stages

    def tick(self, now: float) -> None:
        self._perform(self.machine.tick(now))

    def next_deadline(self) -> float | None:
        return self.machine.next_deadline()

    def stored(self, stage: int, version: int) -> None:
        """A checkpoint of our lineage was written to our disk."""
        self._made.add((stage, version))
        self._stale.set()

    def closed(self, committed: Committed) -> None:
        """A seat of ours has closed a step, which shows the others' versions."""
        if committed.era != self.lineage.era:
            return
        state, now = bytes.fromhex(committed.hash), self._ports.now()
        of = (committed.stage, committed.version, state)
        if self.machine.closed(*of, committed.with_whom, now, committed.electors):
            self._stale.set()

    def certified(self, waypoint: Waypoint) -> None:
        """A chain of waypoints leads to this version: a newcomer begins with it."""
        self._perform(self.machine.certify(waypoint, self._ports.now()))

    def begun_with(self, stage: int, had: bool) -> None:
        """A stage has got the state with which it begins, or nobody who names it gives it."""
        self._perform(self.machine.begun_with(stage, had=had, now=self._ports.now()))

    def disk_changed(self) -> None:
        """A checkpoint was removed from our disk: our record of the disk must be made again."""
        self._stale.set()

    def _is_ours(self, stored: CheckpointInfo) -> bool:
        """Whether a checkpoint is of our lineage; a write may begin in one lineage and end in the
        next."""
        if self._made_all or stored.version <= self.lineage.version:
            return True
        return (stored.stage, stored.version) in self._made

    def end(self) -> None:
        """We are leaving: the remaining members decide how the run continues. They are told still
        what is on our disk."""
        self.machine.end()
        evidence = self.machine.evidence.kept()
        self._evidence_file.keep(evidence)  # otherwise the earlier file stays valid

    async def run(self) -> None:
        """Publish the checkpoints on our disk, now and on every change; fetch what the machine
        wants."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_saying)
            nursery.start_soon(self._keep_fetching)

    async def _keep_fetching(self) -> None:
        async for wanted in self._to_fetch:
            _discard(self._fetched, self.folder.folder)  # ours was not given up for that line
            self._fetched = await fetch_line(self._downloads, self.folder.folder, wanted)
            if self._fetched:
                self._perform(self.machine.fetched(self._ports.now()))
            else:
                await trio.sleep(RETRY_S)
                self._perform(self.machine.not_fetched(self._ports.now()))

    async def _keep_saying(self) -> None:
        while True:
            self._stale = trio.Event()
            complete = False
            with suppress(OSError):
                complete = await self._say_copies()
            with trio.move_on_after(math.inf if complete else UNREAD_S):
                await self._stale.wait()

    async def _say_copies(self) -> bool:
        """Publish the checkpoints on our disk and save what we have seen; return whether all were
        readable and the disk names our lineage."""
        evidence = self.machine.evidence
        if evidence.any or evidence.saw_training:
            with suppress(OSError):  # the earlier file stays valid
                await trio.to_thread.run_sync(self._evidence_file.save, evidence.kept())
        if (lineage := self.lineage) != self._saved:
            with suppress(OSError):  # it is tried again
                await trio.to_thread.run_sync(self._lineage_file.save, lineage)
                self._saved = lineage
        found = await trio.to_thread.run_sync(
            stored_states, self.folder, self._ports.swarm, self._stages
        )
        entries = await trio.to_thread.run_sync(self.folder.entries)
        if entries and not found:
            return False  # "none" would be false
        ours = filter(self._is_ours, found)
        copies = {Copy(s.stage, s.version, bytes.fromhex(s.hash)) for s in ours}
        self._perform(self.machine.set_copies(copies, self._ports.now()))
        return self._saved == self.lineage and len(found) >= len(entries)

    def _perform(self, effects: list[RecoveryEffect]) -> None:
        for effect in effects:
            match effect:
                case Adopt(lineage, given_up=given_up):
                    self._adopt(lineage, given_up)
                case FetchLine():
                    self._wanted.send_nowait(effect)
                case SaveNow():
                    self._seats.save_now()
                case _:
                    self._ports.perform(effect)

    def _adopt(self, lineage: Lineage, given_up: GivenUp | None) -> None:
        fetched = () if given_up is None else given_up.fetched
        kept = -1 if fetched else lineage.version
        self._made, self._made_all = set(), False
        self._shelf.withdraw_above(kept)
        try:
            for checkpoint in self.folder.entries():
                if checkpoint.version > kept:
                    self.folder.set_aside(checkpoint)
            self._lineage_file.save(lineage)
            self._saved = lineage
            for copy in fetched:  # under the old lineage they would be another state
                self._place(copy)
            self._evidence_file.save(self.machine.evidence.kept())
        except OSError as error:
            words = f"the new lineage cannot be written to {self.folder.folder}: {error}"
            self._ports.perform(Explain("transfer", words, "error"))
        self._stale.set()
        self._seats.begin_anew(lineage, given_up)

    def _place(self, copy: Copy) -> None:
        """Put a copy of the line that we go over to in its place, and offer it."""
        fetched = self._fetched.pop(copy)
        path = self.folder.adopt(_apart(self.folder.folder, copy), copy.stage, copy.version)
        self._shelf.put(fetched, path, temporary=False)
        self._made.add((copy.stage, copy.version))


async def fetch_line(downloads: Downloads, folder: Path, wanted: FetchLine) -> dict[Copy, Filed]:
    """Fetch the state of another line into a folder while our seats go on, under temporary names;
    empty: one of its copies cannot be had, or not in time."""
    fetched = dict[Copy, Filed]()
    try:
        with trio.move_on_after(wanted.within_s) as limit:
            for copy in wanted.copies:
                state = downloads.state(copy.stage, copy.version, copy.hash)
                fetched[copy] = await downloads.fetch(
                    state, wanted.donors, _apart(folder, copy), begins_s=ANSWER_S
                )
        if limit.cancelled_caught:
            raise DownloadFailed(f"it did not come within {wanted.within_s:.0f} s")
    except DownloadFailed as error:
        _discard(fetched, folder)
        words = f"the state of the other line of the run cannot be had: {error}"
        downloads.ports.perform(Explain("transfer", words, "warning"))
        return {}
    return fetched


def _apart(folder: Path, copy: Copy) -> Path:
    return folder / f".stage-{copy.stage}-v{copy.version}.line.tmp"


def _discard(copies: Iterable[Copy], folder: Path) -> None:
    for copy in copies:
        unlink(_apart(folder, copy))


def why_unusable(found: Lineage, *, stages: int, steps: int) -> str:
    """Say why a kept lineage cannot be one of this run; empty: it can."""
    if len(found.hashes) != (stages if found.version else 0):
        return "it lacks the state of some stage"
    if found.version > steps:
        return f"the run has {steps} steps, and it begins later"
    if found.number > HIGHEST_NUMBER:
        return f"no run was rolled back {found.number} times"
    if bool(found.electors) != bool(found.era):
        return "it lacks its electors"
    return ""
