"""Drives the machine of ``protocol.recovery``: the run's history as this volunteer knows it.

It gives the machine the checkpoints on our disk and our view of the swarm, and performs its
decisions: when a new lineage begins, checkpoints of the old one are set aside and every seat
restarts. Before our line of the run is given up for another one, it fetches that one's state.
"""

import math
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import trio

from client.compute.checkpoint import CheckpointInfo
from client.store import records
from client.store.checkpoints import CheckpointFolder
from client.store.persisted import Persisted
from client.train.ports import Ports
from client.train.recovery.copies import FetchedCopy, discard, fetch_line
from client.train.swarm.views import eras_served, live_members, versions_served
from client.train.transfer.blobs import Downloads, Shelf
from client.train.transfer.inventory import stored_states
from protocol.effects import Explain
from protocol.ids import PeerId, SwarmId
from protocol.manifest import Manifest
from protocol.membership.contacts import Contacts
from protocol.membership.roster import Roster
from protocol.membership.view import RecordChanged, RecordGone
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
from protocol.recovery.knowledge import Certified, Knowledge
from protocol.recovery.machine import Recovery
from protocol.recovery.stored import HIGHEST_NUMBER, Copy, Lineage
from protocol.view import SwarmView
from protocol.waypoints.chain import Waypoint

RETRY_S: Final = 5.0
"""Rest after the state of another line could not be fetched."""
UNREAD_S: Final = 30.0
"""Seconds after which a disk that could not be read completely is read again."""


class Restarts(Protocol):
    """The owner of our seats."""

    def begin_anew(self, lineage: Lineage, given_up: GivenUp | None) -> None:
        """Acquire every stage again from the start of this lineage, for which our line of the run
        may have been given up."""

    def has_quorum(self, now: float) -> bool:
        """Whether a majority of the electors of each of our seats is within reach."""

    def electors_ended(self) -> int:
        """The number of a seat's electors, if too many have ended for a majority; else 0."""

    def save_now(self) -> None:
        """Write a checkpoint of the version that each seat serves."""


class History:
    """See the module's docstring.

    Args:
        folder: this swarm's checkpoints.
        shelf: offers them to others.
        steps: of the whole run, with its amendments; and of the longest that it was to have. None:
            those of the manifest.
    """

    def __init__(
        self,
        ports: Ports,
        me: PeerId,
        manifest: Manifest,
        swarm: SwarmId,
        touch: Contacts,
        folder: CheckpointFolder,
        shelf: Shelf,
        downloads: Downloads,
        steps: tuple[int, int] | None = None,
    ) -> None:
        self._ports, self._me, self.touch = ports, me, touch
        self._swarm, self._stages = swarm, manifest.stage_count
        self._folder, self._shelf, self._downloads = folder, shelf, downloads
        self._lineage_file = Persisted(folder.folder / records.LINEAGE, Lineage)
        self._evidence_file = Persisted(folder.folder / records.EVIDENCE, Kept)
        now, longest = steps or (manifest.steps, manifest.steps)
        of_no_use = partial(why_unusable, stages=manifest.stage_count, steps=longest)
        lineage = self._lineage_file.load(self._warn, of_no_use) or Lineage()
        self._saved = lineage
        """The lineage that the disk names as that of its checkpoints."""
        known = Knowledge(
            me,
            manifest.stage_count,
            manifest.policy.checkpoint_every,
            lineage,
            now,
            Evidence(self._evidence_file.load(self._warn), me),
            manifest.founder,
        )
        self.machine = Recovery(known, int(time.time() * 1000))
        self._wanted, self._to_fetch = trio.open_memory_channel[FetchLine](math.inf)
        self._fetched: dict[Copy, FetchedCopy] = {}
        """The state of another line, verified; it is used once ours is given up."""
        self.seats: Restarts | None = None
        self._stale = trio.Event()
        self._made: set[tuple[int, int]] = set()
        self._made_all = True  # the checkpoints found at the start are of its lineage

    # --- what a stage's newcomer asks --------------------------------------------------------

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

    @property
    def open(self) -> bool:
        """Whether the version from which a stage without state begins is decided."""
        return self.machine.open

    def holders(self, stage: int) -> list[PeerId]:
        """Return the others who have the state of a stage from which the lineage begins."""
        found = holders(self.machine.known.stored_live(), self.lineage, stage)
        return [peer for peer in found if peer != self._me]

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

    # --- inputs ------------------------------------------------------------------------------

    def record(self, record: RecordChanged | RecordGone) -> None:
        """Handle another member's stored record, or its expiry."""
        if isinstance(record, RecordGone):
            self.machine.forget(record.signer)
        else:
            self._perform(self.machine.receive(record.signer, record.said, self._ports.now()))

    def update(self, roster: Roster, view: SwarmView) -> None:
        """Handle a new view of the swarm; ``view`` is that of our lineage."""
        live, saw_training = live_members(roster, self._me), self.machine.evidence.saw_training
        context = RecoveryContext(
            live=live,
            versions=self.machine.known.versions(view),
            eras=eras_served(roster, self._stages, self._me),
            quorum=self._has_quorum,
            ended=self._electors_ended,
            moved=view.moved(),
            unseen=view.unseen,
            unlinked=roster.unlinked(),
            reached=versions_served(roster, self._stages, self._me),
            is_gone=self.touch.is_gone,
            serving=view.replicas(),
            heard=roster.newest_heard,
        )
        self._perform(self.machine.update(context, self._ports.now()))
        if self.machine.evidence.saw_training and not saw_training:
            self._stale.set()

    def _has_quorum(self, now: float) -> bool:
        return self.seats is None or self.seats.has_quorum(now)

    def _electors_ended(self) -> int:
        return 0 if self.seats is None else self.seats.electors_ended()

    def tick(self, now: float) -> None:
        """Handle deadlines that have passed."""
        self._perform(self.machine.tick(now))

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
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
        of = waypoint.era, waypoint.version, waypoint.hashes, waypoint.peers
        self._perform(self.machine.certify(Certified(*of), self._ports.now()))

    def reopened(self, stage: int) -> None:
        """A seat of ours cannot use its state and takes that of others."""
        self.machine.evidence.reopened(stage)

    def left_behind(self, stage: int) -> None:
        """Others have closed a step of a seat of ours, which lacks what it takes to follow."""
        self.machine.known.left_behind(stage)

    def begun_with(self, stage: int, *, had: bool) -> None:
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

    def _warn(self, words: str) -> None:
        self._ports.perform(Explain("transfer", words, "warning"))

    async def run(self) -> None:
        """Publish the checkpoints on our disk, now and on every change; fetch what the machine
        wants."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_saying)
            nursery.start_soon(self._keep_fetching)

    async def _keep_fetching(self) -> None:
        async for wanted in self._to_fetch:
            discard(self._fetched.values())  # of a line for which ours was not given up
            self._fetched = await fetch_line(self._downloads, self._folder.folder, wanted)
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
            await trio.to_thread.run_sync(self._evidence_file.keep, evidence.kept())
        lineage, keep = self.lineage, self._lineage_file.keep
        if lineage != self._saved and await trio.to_thread.run_sync(keep, lineage):
            self._saved = lineage  # otherwise it is tried again
        found = await trio.to_thread.run_sync(
            stored_states, self._folder, self._swarm, self._stages
        )
        entries = await trio.to_thread.run_sync(self._folder.entries)
        if entries and not found:
            return False  # "none" would be false
        ours = filter(self._is_ours, found)
        copies = {Copy(s.stage, s.version, bytes.fromhex(s.hash)) for s in ours}
        self._perform(self.machine.set_copies(copies, self._ports.now()))
        return self._saved == self.lineage and len(found) >= len(entries)

    # --- effects -----------------------------------------------------------------------------

    def _perform(self, effects: list[RecoveryEffect]) -> None:
        for effect in effects:
            match effect:
                case Adopt(lineage, given_up=given_up):
                    self._adopt(lineage, given_up)
                case FetchLine():
                    self._wanted.send_nowait(effect)
                case SaveNow():
                    if self.seats is not None:
                        self.seats.save_now()
                case _:
                    self._ports.perform(effect)

    def _adopt(self, lineage: Lineage, given_up: GivenUp | None) -> None:
        fetched = () if given_up is None else given_up.fetched
        kept = -1 if fetched else lineage.version
        self._made, self._made_all = set(), False
        self._shelf.withdraw_above(kept)
        try:
            for checkpoint in self._folder.entries():
                if checkpoint.version > kept:
                    self._folder.set_aside(checkpoint)
            self._lineage_file.save(lineage)
            self._saved = lineage
            for copy in fetched:  # under the old lineage they would be another state
                self._place(copy)
            self._evidence_file.save(self.machine.evidence.kept())
        except OSError as error:
            words = f"the new lineage cannot be written to {self._folder.folder}: {error}"
            self._ports.perform(Explain("transfer", words, "error"))
        self._stale.set()
        if self.seats is not None:
            self.seats.begin_anew(lineage, given_up)

    def _place(self, copy: Copy) -> None:
        """Put a copy of the line that we go over to in its place, and offer it."""
        found = self._fetched.pop(copy)
        path = self._folder.adopt(found.path, copy.stage, copy.version)
        self._shelf.put(found.filed, path, temporary=False)
        self._made.add((copy.stage, copy.version))


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
