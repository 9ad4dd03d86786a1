"""The chaos world: real seats and contacts, a seeded event queue, and faults.

State: the volunteers, the network between them, the facts of every committed version. A trial
(``trial``) checks the whole run. Equal seeds give equal runs.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from client.lab.simulate.agenda import Range
from client.lab.simulate.chaos.acquisition import Acquisitions
from client.lab.simulate.chaos.audits import Audits
from client.lab.simulate.chaos.beats import PULSE_S, PULSES_PER_BEAT, Beats
from client.lab.simulate.chaos.config import STEPS, ChaosConfig
from client.lab.simulate.chaos.faults import Faults
from client.lab.simulate.chaos.history import Histories
from client.lab.simulate.chaos.schedule import Fault, schedule
from client.lab.simulate.chaos.swarm import ChaosSwarm
from client.lab.simulate.chaos.volunteer import Clock, Volunteer
from client.lab.simulate.invariants import InvariantViolation
from client.lab.simulate.multisets import LyingWorker, MultisetWorker
from client.lab.simulate.seats import Parts
from client.lab.simulate.unamended import Unamended
from protocol.decree.decree import READY, agreed
from protocol.decree.elector import Elector, Sight
from protocol.evidence.statement import Decisive, statement_of
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.effects import (
    BackwardTask,
    Committed,
    DecodeTask,
    ForwardTask,
    LossTask,
    Outcome,
    Task,
)
from protocol.pipeline.effects import Fault as SeatFault
from protocol.pipeline.place import Place
from protocol.rounds.effects import CommitTo
from protocol.rounds.quorum import Quorum
from protocol.seat.effects import SeatEffect
from protocol.seat.seat import Seat
from protocol.verdicts import Verdict
from protocol.wire.envelope import Signer
from protocol.wire.messages import Admit, Commitment, Message, Propose, Ready, Segment, Statements
from protocol.wire.parts import Decree, SeatStatus
from protocol.wire.statement import Statement, encode_statement

WRITE_S: Range = (0.05, 1.0)
"""Time to write a checkpoint to the disk."""
CHECK_EVERY: Final = 400
"""Events between two checks of the seats' memory."""


def signature(peer: PeerId, kind: str, body: bytes) -> bytes:
    """Return what stands here for a signature that only its peer can make."""
    return hashlib.blake2b(f"{peer}|{kind}|".encode() + body, digest_size=64).digest()


def is_signed(peer: PeerId, kind: str, body: bytes, signed: bytes) -> bool:
    """Whether a peer has signed a body of a kind."""
    return signed == signature(peer, kind, body)


class ChaosWorld(ChaosSwarm):
    """See the module's docstring.

    Args:
        config: the swarm and its permitted faults.
        faults: replace those that the seed draws.
    """

    def __init__(self, config: ChaosConfig, faults: Sequence[Fault] | None = None) -> None:
        super().__init__(config)
        self.schedule = schedule(config) if faults is None else list(faults)
        self.beats = Beats(self)
        self.histories = Histories(self)
        self.acquisitions = Acquisitions(self, self.histories)
        self.audits = Audits(self)
        self.faults = Faults(self, self.schedule)
        self.events = 0
        self._length = Unamended(STEPS)
        self._begin()

    def _begin(self) -> None:
        """Start with all volunteers linked; they begin the run."""
        for stage in range(self.config.stages):
            for index in range(self.config.replicas):
                self.add(stage, f"{stage}/{index}").alive = True
        for index in range(self.config.liars if self.config.lies else 0):
            liar = self.add(self.liar.stage, f"liar-{index + 1}" if index else "liar")
            liar.alive = liar.lies = True
        everybody = list(self.volunteers.values())
        for volunteer in everybody:
            self.histories.begin(volunteer)
        for index, volunteer in enumerate(everybody):
            for other in everybody[:index]:
                self.beats.link(volunteer, other)
        for volunteer in everybody:
            self.acquisitions.start(volunteer)
            self._pulse_later(volunteer)
        for fault in self.schedule:
            self.agenda.at(fault.at, partial(self.faults.meet, fault))

    # --- volunteers ------------------------------------------------------------------------

    def add(self, stage: int, name: str) -> Volunteer:
        """Create a volunteer for a stage; it has no process yet."""
        key = hashlib.blake2b(f"{self.config.seed}/{name}".encode(), digest_size=32).digest()
        clock = Clock(self.random.uniform(0, 1e5), self.random.uniform(0.99, 1.01))
        signer = Signer(key) if self.config.audits else None
        peer = signer.peer if signer else peer_id_from_key(key)
        volunteer = Volunteer(peer, stage, alive=False, name=name, clock=clock, signer=signer)
        self.volunteers[volunteer.peer] = volunteer
        self._elect(volunteer)
        return volunteer

    def _elect(self, volunteer: Volunteer) -> None:
        """Give a process its elector, which knows what the one before it has written down."""
        terms = volunteer.elector.terms
        sees = Sight(
            may_be=partial(self._may_be, volunteer),
            proves=lambda peer: volunteer.recovery.evidence.proves(peer),
            first=partial(self._first_electors, volunteer),
            serving=partial(self._serving, volunteer),
            lost=partial(self._lost, volunteer),
            is_near=lambda at: volunteer.seat is not None and abs(at - volunteer.stage) <= 1,
            now=partial(self.now_of, volunteer),
        )
        volunteer.elector = Elector(partial(signature, volunteer.peer), is_signed, sees)
        volunteer.elector.load(terms)

    def _serving(self, volunteer: Volunteer, stage: int) -> dict[PeerId, int]:
        """Who serves a stage at which version, as far as a volunteer sees."""
        view = volunteer.believes(self.config.stages)
        return {replica.peer: replica.version for replica in view.serving(stage)}

    def _lost(self, volunteer: Volunteer) -> frozenset[PeerId]:
        lost, seat = volunteer.contacts.lost(self.now_of(volunteer)), volunteer.seat
        return lost if seat is None else lost | seat.quorum.aside

    def _may_be(self, volunteer: Volunteer, stage: int, era: int, step: int) -> bool:
        """Whether a stage may be at a step, as far as a volunteer sees."""
        view = volunteer.believes(self.config.stages)
        return era == volunteer.recovery.lineage.era and abs(step - view.committed(stage)) <= 1

    def _first_electors(self, volunteer: Volunteer, era: int, step: int) -> tuple[PeerId, ...]:
        ours = volunteer.recovery.lineage
        return ours.electors if (ours.era, ours.version) == (era, step) else ()

    def start(self, volunteer: Volunteer) -> None:
        """See ``ChaosSwarm``."""
        if volunteer.alive or volunteer.retired:
            return
        volunteer.alive = True
        self.note(volunteer, "starts")
        self.histories.begin(volunteer)
        self._pulse_later(volunteer)
        self.acquisitions.start(volunteer)

    def replace(self, gone: Volunteer) -> None:
        """See ``ChaosSwarm``."""
        if not gone.replaced:
            gone.replaced = True
            newcomer = self.add(gone.stage, f"{gone.name}+")
            self.network.place(newcomer.peer, gone.peer)
            self.start(newcomer)

    def crash(self, volunteer: Volunteer, *, wipe: bool) -> None:
        """See ``ChaosSwarm``."""
        self.note(volunteer, "crashes")
        for to in list(volunteer.links):
            self.network.close(volunteer, to, dies=True)
        volunteer.alive = False
        volunteer.forget_process()
        self._elect(volunteer)
        self.audits.restarted(volunteer)
        if wipe:
            volunteer.disk.lose()
            volunteer.snapshots = {}

    def wake(self, volunteer: Volunteer, incarnation: int) -> None:
        """Continue the process: its timers or its waiting messages come first, at random."""
        if not volunteer.paused or volunteer.incarnation != incarnation:
            return
        self.note(volunteer, f"wakes up to {len(volunteer.backlog)} events")
        volunteer.paused = False
        backlog, volunteer.backlog = volunteer.backlog, []
        timers_first = self.random.random() < 0.5
        if volunteer.missed_pulse and timers_first:
            self._pulse(volunteer, incarnation)
        for action in backlog:
            if volunteer.incarnation == incarnation:
                volunteer.take_in(action)
        if volunteer.missed_pulse and not timers_first:
            self._pulse(volunteer, incarnation)

    # --- time ------------------------------------------------------------------------------

    def _pulse_later(self, volunteer: Volunteer) -> None:
        at = volunteer.clock.when(self.now_of(volunteer) + PULSE_S)
        self.agenda.at(at, partial(self._pulse, volunteer, volunteer.incarnation))

    def _pulse(self, volunteer: Volunteer, incarnation: int) -> None:
        """Check a node's deadlines."""
        if not volunteer.alive or volunteer.incarnation != incarnation:
            return
        volunteer.missed_pulse = volunteer.paused
        if volunteer.paused:
            return
        self._pulse_later(volunteer)
        volunteer.pulses += 1
        if volunteer.pulses % PULSES_PER_BEAT == 0:
            self.beats.second(volunteer)
            self.histories.gossip(volunteer)
        self.histories.tick(volunteer)
        if volunteer.seat is not None:
            self.perform(volunteer, volunteer.seat.tick(self.now_of(volunteer)))

    # --- seats -----------------------------------------------------------------------------

    def open_seat(
        self,
        volunteer: Volunteer,
        version: int,
        *,
        serving: bool,
        admit: Admit | None = None,
        saved: str = "",
    ) -> None:
        """See ``ChaosSwarm``."""
        config, lineage = self.config, volunteer.recovery.lineage
        of = config.stages, config.per_step
        place = Place(volunteer.peer, volunteer.stage, *of, era=lineage.era)
        volunteer.epoch += 1
        volunteer.payloads = {}
        volunteer.worker = self._worker(volunteer, place)
        volunteer.seat = Seat(
            place,
            size=volunteer.worker.size,
            tokens_per_step=1,
            step=version,
            serving=serving,
            quorum=Quorum(
                volunteer.peer,
                volunteer.stage,
                volunteer.contacts,
                volunteer.recovery.known.has_left,
                [PeerId(elector) for elector in lineage.electors],
            ),
            elector=volunteer.elector,
            promise=max(volunteer.promise, volunteer.word.promise(volunteer.stage, lineage.era)),
            proves=volunteer.recovery.evidence.proves,
            audits=self.audits.terms(volunteer),
            evaluation=None,
            amendments=self._length,
            at_once=1,
            number_bytes=0.0,
        )
        self.carry(volunteer, volunteer.held.opened(self.now_of(volunteer), serving=serving))
        volunteer.returning = None
        if saved:
            self._loaded(volunteer, version, volunteer.worker.load(version, saved))
        if admit is not None:
            volunteer.seat.admitted_by(admit, self.now_of(volunteer))
        self.beats.say(volunteer)
        self.show(volunteer)
        self.opened(volunteer)

    def opened(self, volunteer: Volunteer) -> None:
        """A volunteer has taken its seat."""

    def _worker(self, volunteer: Volunteer, place: Place) -> MultisetWorker:
        config, later = self.config, self.config.hashes_later
        if volunteer.lies:
            return LyingWorker(place, config.lies, config.lies_from, hashes_later=later)
        line = str(volunteer.recovery.lineage.era).encode() if config.parting else b""
        return MultisetWorker(place, hashes_later=later, line=line)

    def _perform_one(self, peer: Volunteer, effect: SeatEffect, parts: Parts) -> None:
        if isinstance(effect, CommitTo | Verdict):
            self.audits.perform(peer, effect)
        else:
            super()._perform_one(peer, effect, parts)

    def load(self, volunteer: Volunteer, version: int, saved: str) -> None:
        """See ``ChaosSwarm``."""
        if volunteer.seat is not None and volunteer.worker is not None:
            self._loaded(volunteer, version, volunteer.worker.load(version, saved))
            self.perform(volunteer, volunteer.seat.state_loaded(self.now_of(volunteer)))

    def lose(self, volunteer: Volunteer, why: str) -> None:
        """See ``ChaosSwarm``."""
        self.note(volunteer, f"takes its stage anew: {why}")
        self.carry(volunteer, volunteer.held.lose(self.now_of(volunteer)))

    def retake(self, peer: Volunteer) -> None:
        """See ``SeatWorld``."""
        if peer.seat is not None:
            peer.promise = peer.seat.member.promise
        peer.seat = peer.worker = None
        peer.epoch += 1
        self.beats.say(peer)
        self.acquisitions.start(peer)

    def begin_anew(self, volunteer: Volunteer) -> None:
        """See ``ChaosSwarm``."""
        lineage = volunteer.recovery.lineage
        back = SeatStatus(volunteer.stage, lineage.version, "fetching", 0, 0.0)
        volunteer.returning = msgspec.structs.replace(back, era=lineage.era)
        volunteer.snapshots = {}
        self.note(volunteer, "takes its stage anew: a lineage begins")
        self.carry(volunteer, volunteer.held.begin_anew(self.now_of(volunteer)))
        volunteer.promise = (0, 0)

    def _loaded(self, volunteer: Volunteer, version: int, found: str) -> None:
        if not volunteer.lies:
            self.checks.loaded(volunteer, version, found)

    # --- lies ------------------------------------------------------------------------------

    def _lets_a_liar_in(self, message: Message) -> bool:
        """Whether a message between siblings admits the liar, which may take its stage again at any
        time: that does not count as activity."""
        joiner = self.volunteers.get(PeerId(message.joiner)) if isinstance(message, Admit) else None
        return joiner is not None and joiner.lies

    def _decree_told(self, volunteer: Volunteer, said: Propose, true: Decree) -> Decree | None:
        def ready(false: Decree) -> bytes:
            of = Statement(said.stage, said.era, said.step, false.attempt, agreed(false))
            return signature(volunteer.peer, READY, encode_statement(of))

        return self.liar.decree(volunteer.peer, true, ready, list(self.volunteers))

    def linked(self, volunteer: Volunteer, to: PeerId) -> None:
        """See ``ChaosSwarm``."""
        self.histories.tell(volunteer, to)

    def show(self, volunteer: Volunteer) -> None:
        """See ``ChaosSwarm``."""
        if volunteer.running:
            self.histories.update(volunteer)
        if volunteer.seat is not None and volunteer.running:
            view = volunteer.believes(self.config.stages)
            self.perform(volunteer, volunteer.seat.update_view(view, self.now_of(volunteer)))

    # --- what the seats want ---------------------------------------------------------------

    def announce(self, peer: Volunteer, *, near: bool = False) -> None:
        """See ``SeatWorld``."""
        self.beats.say(peer, near_only=near)

    def committed(self, peer: Volunteer, committed: Committed) -> None:
        """See ``SeatWorld``."""
        self.note(peer, f"commits version {committed.version}")
        if not peer.lies:
            self.checks.committed(peer, committed)
        self.histories.closed(peer, committed)
        if committed.version % self.config.checkpoint_every == 0 and peer.worker is not None:
            saved = peer.worker.save(committed.version)
            made_in = peer.recovery.lineage
            wrote = (peer, committed.version, saved, peer.incarnation, made_in)
            self.agenda.sometime(WRITE_S, partial(self.histories.wrote, *wrote))

    def faulted(self, peer: Volunteer, fault: SeatFault) -> None:
        """See ``SeatWorld``: a node takes the stage again, for any reason."""
        if fault.kind in ("behind", "differs"):
            peer.recovery.known.left_behind(peer.stage)
        self.lose(peer, fault.words)

    def send(self, peer: Volunteer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        """See ``SeatWorld``."""
        other = self.volunteers.get(to)
        if peer.lies and getattr(message, "era", 0) in self.liar.begun:
            return
        if isinstance(message, Statements):
            return  # nobody signs two commitments here: ``Checks.stated``
        if isinstance(message, Segment):
            self.audits.contributes(peer, message, parts)
        if isinstance(message, Propose) and message.decree and self.lies_now(peer, "decrees"):
            decree = self._decree_told(peer, message, message.decree)
            if decree is None:
                return
            message = msgspec.structs.replace(message, decree=decree)
        if other is not None and self._states(peer, message):
            kind = type(message).__name__
            arrive = partial(self._take, peer.peer, other, message, parts)
            upkeep = self._lets_a_liar_in(message)
            self.network.send(peer, to, kind, message.route.lane, arrive, upkeep=upkeep)
            self.faults.said(peer, kind)

    def _states(self, peer: Volunteer, message: Message) -> bool:
        """Whether an honest volunteer signs a message; commitments are signed already."""
        if not isinstance(message, Decisive) or isinstance(message, Commitment):
            return True
        if peer.lies:
            return True
        if not self.states(peer, *statement_of(message)):
            return False
        if isinstance(message, Ready):
            self.audits.ready(peer, message)
        return True

    def _take(self, sender: PeerId, peer: Volunteer, message: Message, parts: Parts) -> None:
        if isinstance(message, Admit) and message.joiner == peer.peer:
            self.acquisitions.admitted(peer, sender, message)
        else:
            self.take(sender, peer, message, parts)

    # --- the worker ------------------------------------------------------------------------

    def compute(self, peer: Volunteer, task: Task, epoch: int) -> None:
        """See ``SeatWorld``; a paused node hears of it on waking up."""
        if peer.epoch == epoch:
            peer.take_in(partial(self._compute, peer, task, epoch))

    def _compute(self, peer: Volunteer, task: Task, epoch: int) -> None:
        if peer.epoch != epoch or peer.worker is None:
            return
        spoilt = isinstance(task, LossTask | BackwardTask | DecodeTask)
        spoilt |= isinstance(task, ForwardTask) and peer.stage > 0
        if peer.corrupt and spoilt:
            peer.corrupt -= 1
            self.computed(peer, task, Outcome(error="codec", part=0))
            return
        try:
            outcome = peer.worker.run(task, peer.payloads)
        except KeyError:
            outcome = Outcome(error="gone")
        except InvariantViolation:
            if not peer.lies:
                raise
            outcome = Outcome(error="gone")
        self.computed(peer, task, outcome)

    # --- running ---------------------------------------------------------------------------

    def advance_to(self, until: float) -> None:
        """Run all events before a moment.

        Raises:
            InvariantViolation: an invariant is broken, or a machine raised.
        """
        try:
            while self.agenda.advance(until):
                self.events += 1
                if self.events % CHECK_EVERY == 0:
                    self.check_bounds()
                    self.check_states()
        except InvariantViolation:
            raise
        except Exception as error:  # a machine that raises is broken as well
            raise InvariantViolation(f"a machine raised {error!r}") from error
        self.agenda.now = max(self.agenda.now, until)

    def check_bounds(self) -> None:
        """Check the bounds of every seat (I8)."""
        members = len(self.volunteers)
        for volunteer in self.honest():
            self.checks.bounded(volunteer, members)

    def check_states(self) -> None:
        """Compare every replica's state with the result of the steps up to its version (I1, I2,
        I4)."""
        for volunteer in self.honest():
            seat, worker = volunteer.seat, volunteer.worker
            if seat is not None and worker is not None and seat.member.loaded:
                self.checks.loaded(volunteer, seat.step, worker.save(seat.step))

    def versions(self) -> list[int]:
        """Return the newest version that is served in each stage."""
        newest = [0] * self.config.stages
        for volunteer in self.honest():
            if volunteer.serving and volunteer.seat is not None:
                newest[volunteer.stage] = max(newest[volunteer.stage], volunteer.seat.step)
        return newest

    def last_step(self, steps: int) -> None:
        """Set the run's last step, for open seats and for later ones."""
        self._length.steps = steps  # a run's length is fixed; a world's is not
        for volunteer in self.volunteers.values():
            volunteer.recovery.known.steps = steps
