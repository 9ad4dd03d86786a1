"""Lineages in the chaos world: drives the machine of ``protocol.recovery`` for every volunteer.

It works like ``client/train/recovery/history.py``: it gives the machine the checkpoints on the
disk, the others' records and the view of the swarm, and performs its decisions. Records of the
disks spread by gossip: immediately to all linked volunteers, and periodically to one of them.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from client.lab.simulate.agenda import Range
from client.lab.simulate.chaos.config import STEPS
from client.lab.simulate.chaos.swarm import ChaosSwarm
from client.lab.simulate.chaos.volunteer import Volunteer
from protocol.effects import Explain, Publish
from protocol.ids import PeerId, short
from protocol.pipeline.effects import Committed
from protocol.recovery.choice import holders
from protocol.recovery.effects import Adopt, FetchLine, RecoveryContext, RecoveryEffect, SaveNow
from protocol.recovery.evidence import Evidence
from protocol.recovery.knowledge import Knowledge
from protocol.recovery.machine import Recovery
from protocol.recovery.stored import Lineage, Stored, check_stored

SEQ_PER_S: Final = 1000
FETCH_S: Range = (0.5, 10.0)
"""To fetch another line's state while our own goes on."""
SAVE_S: Range = (0.0, 0.5)
Records = dict[PeerId, tuple[int, Stored]]
"""Stored records by author: sequence number and body."""


class Histories:
    """See the module's docstring."""

    def __init__(self, swarm: ChaosSwarm) -> None:
        self._swarm = swarm
        self._stages = swarm.config.stages

    def begin(self, volunteer: Volunteer) -> None:
        """A process starts and reads its disk."""
        config, now = self._swarm.config, self._swarm.now_of(volunteer)
        seq = int(self._swarm.agenda.now * SEQ_PER_S)
        disk = volunteer.disk
        known = Knowledge(
            volunteer.peer,
            self._stages,
            config.checkpoint_every,
            disk.lineage,
            STEPS,
            Evidence(disk.evidence),
        )
        volunteer.recovery = Recovery(known, seq)
        volunteer.records = {}
        self._perform(volunteer, volunteer.recovery.set_copies(volunteer.disk.copies(), now))

    def wrote(
        self, volunteer: Volunteer, version: int, saved: str, incarnation: int, made_in: Lineage
    ) -> None:
        """A checkpoint is on the disk, if its process and its lineage still exist."""
        if not volunteer.alive or volunteer.incarnation != incarnation:
            return
        machine = volunteer.recovery
        newest = machine.known.newest_whole()
        protected = {(stage, newest.version) for stage in range(self._stages)}
        self._write_evidence(volunteer)
        if made_in == machine.lineage:
            volunteer.disk.write(volunteer.stage, version, saved, protected)
        volunteer.take_in(partial(self._say_copies, volunteer))

    def closed(self, volunteer: Volunteer, committed: Committed) -> None:
        """A seat of the volunteer has closed a step."""
        state, now = bytes.fromhex(committed.hash), self._swarm.now_of(volunteer)
        of = (committed.stage, committed.version, state)
        if volunteer.recovery.closed(*of, committed.with_whom, now, committed.electors):
            self._write_evidence(volunteer)

    def _write_evidence(self, volunteer: Volunteer) -> None:
        volunteer.disk.evidence = volunteer.recovery.evidence.kept()

    def _say_copies(self, volunteer: Volunteer) -> None:
        now = self._swarm.now_of(volunteer)
        copies = volunteer.disk.copies()
        self._perform(volunteer, volunteer.recovery.set_copies(copies, now))

    def donors(self, volunteer: Volunteer) -> list[PeerId]:
        """Return the volunteers that have the version from which the lineage begins, ourselves
        first."""
        found = holders(
            volunteer.recovery.known.stored_live(), volunteer.recovery.lineage, volunteer.stage
        )
        there = [peer for peer in found if peer in self._swarm.volunteers]
        return sorted(there, key=lambda peer: peer != volunteer.peer)

    def begun_with(self, volunteer: Volunteer, *, had: bool) -> None:
        """Note whether the state with which our stage begins was had."""
        machine, now = volunteer.recovery, self._swarm.now_of(volunteer)
        self._perform(volunteer, machine.begun_with(volunteer.stage, had=had, now=now))

    def _fetch(self, volunteer: Volunteer, wanted: FetchLine, incarnation: int) -> None:
        """The time that it takes to fetch another line's state is over."""
        if volunteer.incarnation != incarnation:
            return
        donors = [self._swarm.volunteers[p] for p in wanted.donors if p in volunteer.links]
        machine, now = volunteer.recovery, self._swarm.now_of(volunteer)
        there = all(
            any(
                donor.running
                and donor.disk.checkpoints.get((copy.stage, copy.version)) == copy.hash.hex()
                for donor in donors
            )
            for copy in wanted.copies
        )
        self._perform(volunteer, machine.fetched(now) if there else machine.not_fetched(now))

    def _save(self, volunteer: Volunteer) -> None:
        seat, worker = volunteer.seat, volunteer.worker
        if seat is not None and worker is not None and seat.serving:
            of = seat.step, worker.save(seat.step), volunteer.incarnation
            wrote = partial(self.wrote, volunteer, *of, volunteer.recovery.lineage)
            self._swarm.agenda.sometime(SAVE_S, wrote)

    # --- views ----------------------------------------------------------------------

    def update(self, volunteer: Volunteer) -> None:
        """The view of the swarm has changed."""
        view, me, now = (
            volunteer.believes(self._stages),
            volunteer.peer,
            self._swarm.now_of(volunteer),
        )
        machine, others = volunteer.recovery, volunteer.statuses.items()
        served = {p: s for p, s in others if p != me and s.state == "serving"}
        eras = {p: {s.era: s.version} for p, s in served.items()}
        versions = machine.known.versions(view)
        quorum = partial(self._has_quorum, volunteer)
        told = frozenset(volunteer.records.keys() - self._swarm.volunteers.keys())
        live = volunteer.seen_live() | told  # as in a swarm too large to link with all
        seen = (live, versions, eras, quorum, view.moved())
        context = RecoveryContext(
            *seen,
            unlinked=told,
            is_gone=volunteer.contacts.is_gone,
            serving=view.replicas(),
            ended=lambda: volunteer.seat.quorum.ended() if volunteer.seat else 0,
        )
        self._perform(volunteer, machine.update(context, now))

    @staticmethod
    def _has_quorum(volunteer: Volunteer, now: float) -> bool:
        return volunteer.seat is None or bool(volunteer.seat.quorum.may_roll_back(now))

    def tick(self, volunteer: Volunteer) -> None:
        """Handle deadlines that have passed."""
        deadline, now = volunteer.recovery.next_deadline(), self._swarm.now_of(volunteer)
        if deadline is not None and deadline <= now:
            self._perform(volunteer, volunteer.recovery.tick(now))

    # --- records ---------------------------------------------------------------------------

    def gossip(self, volunteer: Volunteer) -> None:
        """Send all our records of disks to one peer."""
        linked = sorted(volunteer.links)
        if linked:
            self.tell(volunteer, self._swarm.random.choice(linked))

    def tell(self, volunteer: Volunteer, to: PeerId) -> None:
        """Send our records to one peer."""
        other = self._swarm.volunteers[to]
        take = partial(self._take, other, self._swarm.records_told(volunteer))
        self._swarm.network.send(volunteer, to, "Records", "control", take, upkeep=True)

    def _take(self, volunteer: Volunteer, records: Records) -> None:
        for author, (seq, stored) in records.items():
            if author == volunteer.peer or seq <= self._seq(volunteer, author):
                continue
            check_stored(stored, self._stages)
            volunteer.records[author] = (seq, stored)
            self._received(volunteer, author, stored)

    def _seq(self, volunteer: Volunteer, author: PeerId) -> int:
        return volunteer.records[author][0] if author in volunteer.records else -1

    def _received(self, volunteer: Volunteer, author: PeerId, stored: Stored) -> None:
        now = self._swarm.now_of(volunteer)
        self._perform(volunteer, volunteer.recovery.receive(author, stored, now))

    def _perform(self, volunteer: Volunteer, effects: Sequence[RecoveryEffect]) -> None:
        for effect in effects:
            match effect:
                case Publish(said=Stored() as stored):
                    at_least = int(self._swarm.agenda.now * SEQ_PER_S)
                    seq = max(self._seq(volunteer, volunteer.peer) + 1, at_least)
                    volunteer.records[volunteer.peer] = (seq, stored)
                    for to in list(volunteer.links):
                        self.tell(volunteer, to)
                case FetchLine():
                    fetch = partial(self._fetch, volunteer, effect, volunteer.incarnation)
                    self._swarm.agenda.sometime(FETCH_S, partial(volunteer.take_in, fetch))
                case SaveNow():
                    self._save(volunteer)
                case Adopt(lineage, ours=ours):
                    others = [self._swarm.volunteers[p] for p in volunteer.seen_live()]
                    honest = sum(not v.lies for v in others) - 1
                    told = {"ours": ours, "cut_off": honest < 2}
                    self._swarm.checks.adopted(volunteer, lineage, **told)
                    if ours and self._swarm.config.parting:
                        self._swarm.checks.begun(volunteer, lineage)
                    if (given_up := effect.given_up) is not None:
                        members = ", ".join(map(short, given_up.members))
                        words = f"{given_up.steps} steps are given up for the line of {members}"
                        self._swarm.note(volunteer, words)
                    volunteer.disk.begin(lineage, given_up.fetched if given_up else ())
                    self._write_evidence(volunteer)
                    self._swarm.begin_anew(volunteer)
                case Explain(_, words):
                    self._swarm.note(volunteer, words)
                case _:
                    pass
