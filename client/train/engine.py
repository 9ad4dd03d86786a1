"""The engine of a node: network events in, machines asked, their effects performed.

The engine owns membership and matching, and connects them with the seats. It makes no decisions of
its own. Everything runs in one thread without waiting for the network or the worker: slow work
(opening a stage, downloads, saving) runs in tasks of ``HeldStages``. It waits for the disk where
little is written: what nobody may hear before it is stored (vouches, invites), new amendments,
expulsions and waypoints, and once a minute what was counted.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path

import trio

from client.clock import SET_CLOCK
from client.net.libp2p_network import Libp2pNetwork
from client.net.network import Inbound, NetEvent, PeerDown, PeerUp
from client.store.checkpoints import CheckpointFolder
from client.store.paths import Folders, Kept
from client.train.messaging.deadline_timer import DeadlineTimer
from client.train.messaging.handshake import Handshake
from client.train.messaging.kept_links import KeptLinks
from client.train.ports import StageHolder, Take
from client.train.recovery.history import History
from client.train.recovery.waypoints import WaypointDriver
from client.train.reporting.event_sink import EventSink
from client.train.swarm.amending import Amending
from client.train.swarm.contributions import Contributions
from client.train.swarm.expulsions import Expulsions
from client.train.swarm.loss_reports import LossReports
from client.train.swarm.measuring import Measuring
from client.train.swarm.notary import Notary
from client.train.swarm.own_advert import OwnAdvert
from client.train.swarm.reach import Reach
from client.train.swarm.views import era_followed, matching_members, swarm_view
from client.train.transfer.blobs import Downloads, Shelf
from client.train.transfer.chunks import ChunkServer
from protocol.amendments.book import Amendments
from protocol.decree.elector import Sight
from protocol.effects import Effect, Explain, Penalise, Publish, Send
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.evidence.statement import Decisive
from protocol.ids import PeerId, Stage, short
from protocol.invite import SwarmFile
from protocol.limits import MAX_CLOCK_OFFSET_S
from protocol.matching.effects import Assign, Unassign
from protocol.matching.machine import Matching
from protocol.membership.advert import Advert
from protocol.membership.losses import HELD_OUT, PROGRESS
from protocol.membership.measured import MEASURED
from protocol.membership.membership import Membership
from protocol.membership.roster import guests_for
from protocol.membership.swarm_clock import SwarmClock, off_words
from protocol.membership.view import MembershipEffect, RecordChanged, ViewChanged
from protocol.pipeline.effects import Committed
from protocol.recovery.stored import STORED
from protocol.seat.effects import HeldOutLoss, SeatNews
from protocol.verdicts import Verdict
from protocol.view import SwarmView
from protocol.waypoints.part import WAYPOINT
from protocol.wire.envelope import Signer
from protocol.wire.fields import Envelope
from protocol.wire.messages import (
    ChunkRequest,
    Commit,
    Goodbye,
    Heartbeat,
    Hello,
    Letter,
    Message,
    Propose,
    RecordDigest,
    Records,
    Statements,
)
from protocol.wire.parts import Expulsion, Proof

STRANGERS_WAIT_S = 1.0
"""Longest wait of what a peer that has done no work says of its seats, of its coming and of its
going: there is always something new in a crowd."""
REST = 50
"""A look at all members is followed by a rest of so many times its duration: anybody can tell of
thousands of them, or link hundreds with us."""


class Engine:
    """See the module's docstring. Implements ``Ports``.

    Args:
        home: where it keeps who is expelled, what we have signed, the founder's amendments, the
            chain of waypoints, and who has contributed; None: nothing is kept.
        checkpoints: of the swarm; None: we only look on.
    """

    def __init__(
        self,
        network: Libp2pNetwork,
        signer: Signer,
        file: SwarmFile,
        event_sink: EventSink,
        nursery: trio.Nursery,
        home: Folders | None = None,
        checkpoints: CheckpointFolder | None = None,
    ) -> None:
        self.network, self.signer, self.event_sink = network, signer, event_sink
        self.me = signer.peer
        self.manifest, self.swarm = manifest, swarm = file.manifest, file.swarm
        stages = manifest.stage_count

        def place(kept: Kept) -> Path | None:
            return None if home is None else home.of(file.swarm, kept)

        self.membership = Membership(self.me, swarm, stages, self._may_speak)
        self.membership.is_new = self._is_new
        self.wall: Callable[[], float] = time.time
        """Unix seconds."""
        self._clock = SwarmClock(
            lambda peer: peer in self.handshake.admitted and not self._is_new(peer)
        )
        self.measuring = Measuring(signer.peer, manifest, self.membership)
        contributed = place(Kept.CONTRIBUTIONS)
        self.contributions = Contributions(signer.peer, self.membership, contributed)
        self.own_advert = OwnAdvert(self.membership, self.measuring, self)
        self.matching: Matching | None = None
        self.shelf, self.downloads = Shelf(self), Downloads(self)
        self.expulsions = Expulsions(self, network, self.membership, place(Kept.PROOFS))
        sees = Sight(
            may_be=self._may_be,
            proves=self._is_proven,
            first=self._first_electors,
            serving=self._serving,
            lost=self._lost,
            is_near=self._is_near,
            now=self.now,
        )
        self.notary = Notary(self, sees, place(Kept.MARKS))
        self.elector = self.notary.elector
        self.amending = Amending(self, place(Kept.AMENDMENTS), self._amended)
        self.reach = Reach(self, network, nursery)
        verdicts = self.membership.verdicts
        self.handshake = Handshake(file, self, verdicts, sees=self.reach.sees)
        self.held_stages: StageHolder = StageHolder(stages)
        self.kept_links = KeptLinks()
        self.internal_errors = 0
        """Unexpected errors that were survived."""
        self._to_us, self._for_us = trio.open_memory_channel[Inbound](math.inf)
        """Messages between seats of ours, so that none is called while another one acts."""
        self._nursery = nursery
        self.chunks = ChunkServer(self, network, nursery, self._serve_chunk, self._is_new)
        self._timer = DeadlineTimer(self._deadlines, self._tick)
        self._loss_reports = LossReports(self, self.membership, event_sink)
        self._view_dirty = False
        self._look_due, self._look_again_at, self._view_at = False, 0.0, math.inf
        self._unseen = set[PeerId]()
        """Peers whose latest news our view does not have yet."""
        self._seat_numbers: dict[int, int] = {}  # by stage: the number last announced
        self.history: History | None = None
        """None: we only look on."""
        if checkpoints is not None:
            self.history = History(self, checkpoints, self.shelf, self.downloads)
            self.notary.resume(self.history.lineage.era)
        self.waypoints = WaypointDriver(self, lambda: self.history, place(Kept.WAYPOINTS))
        self.expulsions.restore()

    def now(self) -> float:
        return trio.current_time()

    def compare_clocks(self) -> str:
        """Return why our clock does not let us train, and what to do; empty: it does. See
        ``SwarmClock``."""
        off = self._clock.compare(self.wall(), self.now())
        return f"{off}: it does not train before one is set right; {SET_CLOCK}" if off else ""

    def _may_speak(self, subject: str, peer: PeerId) -> bool:
        """Whether a peer may publish records about a subject, a stage in decimal."""
        stage, matching = Stage(int(subject)), self.matching
        return matching is not None and matching.may_speak(peer, stage, self.now())

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        if peer == self.me:
            self._to_us.send_nowait(Inbound(peer, message, payload))
            return
        if isinstance(message, Decisive):
            signed = self.notary.signed(message)
            if signed is None:
                return
            message = signed
        if self.network.post(peer, message, payload):
            self.measuring.sent(peer, message, len(payload), self.now())

    @property
    def amendments(self) -> Amendments:
        return self.amending.book

    def linked(self) -> Collection[PeerId]:
        return self.handshake.admitted

    def sign(self, kind: str, body: bytes) -> Envelope:
        return self.signer.sign(kind, body, self.swarm)

    def perform(self, *effects: MembershipEffect) -> None:
        for effect in effects:
            match effect:
                case Send(peer, message):
                    self.send(peer, message)
                case Publish():
                    now, wall = self.now(), self.wall()
                    self.perform(*self.membership.publish(effect, self.signer, now, wall))
                case Penalise(peer, "not-from-a-neighbour", _) if peer in self._unseen:
                    pass  # it has said which stage it holds, and our seats do not know yet
                case Penalise(peer, reason, points):
                    if peer != self.me:
                        self.network.penalise(peer, points, reason)
                case Explain():
                    self.event_sink.explain(effect)
                case ViewChanged():
                    self._view_of(effect)
                case RecordChanged():
                    self._record(effect)

    def warn(self, words: str) -> None:
        self.perform(Explain("swarm", words, "warning"))

    def describe(self, advert: Advert) -> None:
        """Enter the swarm with this advert; matching begins."""
        self.matching = Matching(self.me, self.manifest, self.wall() - self.now())
        unable = self.held_stages.unable()
        self.matched(self.matching.set_unable(unable, self.now()))
        self.own_advert.enter(advert, unable)
        self._view_changed()
        for record in self.membership.heard_before():
            with self._against(record.signer, record.kind):
                self._record(record)  # stewards spoke before we could listen, and repeat it rarely

    async def run(self, seen: Sequence[NetEvent] = ()) -> None:
        """Process network events and deadlines until cancelled; the events ``seen`` come first."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timer.run)
            nursery.start_soon(self._deliver)
            for event in seen:
                self.take(event)
            async for event in self.network.events:
                known = event.peer in self.handshake.admitted
                self.take(event)
                if known or event.peer in self.handshake.admitted:  # only these change anything
                    self._refresh(soon=not self._is_new(event.peer))

    def _deadlines(self) -> list[float | None]:
        parts = (self.membership, self.history)
        deadlines = [part.next_deadline() for part in parts if part is not None]
        matching = self.matching.next_deadline(self.now()) if self.matching else None
        look = self._look_again_at if self._look_due else None
        return [*deadlines, matching, look, self._view_at]

    def _set_clock(self) -> None:
        """The machine may have been suspended, or its clock set right."""
        if self.matching is not None:
            self.matching.context.wall_offset_s = self.wall() - self.now()

    def _tick(self) -> None:
        self._set_clock()
        now = self.now()
        deadline = self.membership.next_deadline()
        if deadline is not None and deadline <= now:
            self.seats_changed()  # the heartbeat needs the present state of our seats
            self.perform(*self.membership.tick(now, self.wall()))
        if self.matching is not None and self.matching.next_deadline(now) <= now:
            self.matched(self.matching.tick(now))
        self._view_dirty |= now >= self._view_at
        self.held_stages.tick(now)
        seats = self.held_stages.seats()
        self.perform(*self.measuring.tick(seats, now))
        self.contributions.tick(now)
        if self.history is not None and (self.history.next_deadline() or math.inf) <= now:
            self.history.tick(now)
        if self._look_due:
            self._look_at_members()
        self._refresh()

    def take(self, event: NetEvent) -> None:
        """Handle a network event: a change of a link, or a message, which its route assigns."""
        self._set_clock()
        match event:
            case PeerUp(peer):
                self.handshake.greet(peer)
            case PeerDown(peer, reason):
                self._peer_down(peer, reason, by_peer=event.by_peer)
            case Inbound(peer, message, payload):
                with self._against(peer, type(message).__name__):
                    if (take := self._taker(peer, message, len(payload))) is not None:
                        if isinstance(message, Decisive) and peer != self.me:
                            self.expulsions.stated(peer, message)
                        take(peer, message, payload)

    def _taker(self, peer: PeerId, message: Message, size_bytes: int) -> Take | None:
        """Return the handler of a message from this peer; None: the message is ignored."""
        route = message.route
        if peer in self.handshake.admitted:
            self.measuring.received(peer, message, size_bytes, self.now())
        elif route.sender != "anyone" and (peer != self.me or route.sender == "peer"):
            return None  # before its Hello, or after it was refused
        if route.taker == "node":
            handler: Callable[..., None] = attrgetter(route.handler)(self)
            return handler if route.payload_limit else lambda who, what, _: handler(who, what)
        if route.taker == "elector":
            return self._elect
        taker = self.held_stages.taker(message)
        return self._learn if taker is None and isinstance(message, Commit) else taker

    def _elect(self, peer: PeerId, message: Propose, payload: bytes) -> None:
        """Vote as an elector, or say how a step was closed."""
        answer = self.elector.answer(peer, message)
        if isinstance(answer, Penalise):
            self.perform(answer)
        elif answer is not None:
            self.send(peer, answer)

    def _learn(self, peer: PeerId, message: Commit, payload: bytes) -> None:
        """A stage that we do not hold has closed a step, and may have named us as an elector."""
        self.elector.take(message)

    def _lost(self) -> frozenset[PeerId]:
        """Whom we have lost, or a seat of ours has set aside."""
        lost = self.membership.contacts.lost(self.now())
        return lost.union(*(quorum.aside for quorum in self.held_stages.quorums()))

    def _serving(self, stage: int) -> dict[PeerId, int]:
        """Who serves a stage at which version, as far as we see."""
        return {replica.peer: replica.version for replica in self.held_stages.view.serving(stage)}

    def _is_near(self, stage: int) -> bool:
        """Whether a seat of ours is in a stage or beside it."""
        return any(abs(seat.stage - stage) <= 1 for seat in self.held_stages.seats())

    def _may_be(self, stage: int, era: int, step: int) -> bool:
        """Whether a stage may be at a step, as far as we see."""
        seen = self.held_stages.view
        if self.history is None or era != self.history.lineage.era:
            return False
        return stage < self.manifest.stage_count and abs(step - seen.committed(stage)) <= 1

    def _first_electors(self, era: int, step: int) -> tuple[PeerId, ...]:
        """Return the electors that our lineage names, if a step is its first."""
        ours = None if self.history is None else self.history.lineage
        return ours.electors if ours and (ours.era, ours.version) == (era, step) else ()

    @contextmanager
    def _against(self, peer: PeerId, what: str) -> Iterator[None]:
        """Handle exceptions of the body, which processes ``what`` a peer has sent: its errors are
        penalised, ours are reported."""
        try:
            yield
        except RemoteProtocolError as error:
            self.perform(Penalise(peer, error.reason, error.penalty))
        except Exception as error:  # a bug of ours must not let a peer stop the node
            self.internal_errors += 1
            self.event_sink.survived(f"{what} of {short(peer)}", error)

    async def _deliver(self) -> None:
        """Take the messages between our seats, each in a turn of its own, until cancelled."""
        async for event in self._for_us:
            self.take(event)
            self._refresh()

    def _peer_down(self, peer: PeerId, reason: str, *, by_peer: bool) -> None:
        was_admitted = peer in self.handshake.admitted
        self.handshake.gone(peer)
        self._clock.gone(peer)
        self.reach.gone(peer)
        self.chunks.gone(peer)
        self.measuring.gone(peer)
        self.downloads.lost(peer)
        if was_admitted:
            down = self.membership.link_down(peer, reason, self.now(), by_peer=by_peer)
            self.perform(*down)

    def on_hello(self, peer: PeerId, message: Hello) -> None:
        """Admit a peer, if it may be."""
        self._clock.heard(peer, message.clock, self.now())
        if self.handshake.hello(peer, message):
            self._compare_with(peer)
            self.network.admit(peer)
            self.perform(*self.membership.link_up(peer, self.now()))
            self.expulsions.link_up(peer)
            self.amending.link_up(peer)
            self.waypoints.link_up(peer)
            self.held_stages.linked(peer)
            if message.seen is not None:
                self.reach.observed(peer, message.seen)

    def _compare_with(self, peer: PeerId) -> None:
        """Compare our clock with that of a peer that is admitted now."""
        ahead_s = self._clock.ahead_s(peer, self.wall(), self.now())
        if abs(ahead_s) > 2 * MAX_CLOCK_OFFSET_S:
            words = f"our clock is {off_words(ahead_s)} {short(peer)}'s: the two cannot train"
            words += " together until one is set right"
            self.perform(Explain("membership", words, "warning", (peer,)))

    def on_goodbye(self, peer: PeerId, message: Goodbye) -> None:
        """Report why a link ends."""
        if not self.handshake.parts(peer):
            return
        words = f"{short(peer)} says goodbye: {message.reason}"
        self.perform(Explain("membership", words, members=(peer,)))
        if self.handshake.vouching is not None and self.handshake.greets(peer):
            self.handshake.vouching.refused(message.reason)

    def on_statements(self, peer: PeerId, message: Statements) -> None:
        """Take the signed statements that a peer passes on."""
        envelopes, vouching = message.envelopes, self.handshake.vouching
        match message.kind:
            case "vouches" if vouching is not None:
                vouching.vouched(envelopes)
            case "expulsion" if vouching is not None:
                vouching.expelled(peer, Expulsion(envelopes[0], list(envelopes[1:])))
            case "amendments":
                self.amending.receive(peer, envelopes)
            case "proof":
                self.expulsions.receive(peer, Proof(*envelopes))
            case "decision":
                self.expulsions.passed_on(peer, envelopes[0])

    def _amended(self) -> None:
        """There is a new amendment: the run may be longer, and plans that name it be followed."""
        self.waypoints.machine.steps = self.amending.book.longest
        if self.history is not None:
            self.history.machine.known.steps = self.amending.book.steps
        self._view_dirty = True  # so every seat looks again

    def expel(self, peer: PeerId, reason: str) -> None:
        """End the link with a member that was expelled: it has left, and counts for no majority.

        The link itself ends when it has told the member why; nothing of the member counts any more.
        """
        self._peer_down(peer, reason, by_peer=False)
        self.membership.contacts.left(peer)
        self._nursery.start_soon(self.network.disconnect, peer, reason)

    def greet_all(self) -> None:
        """Say Hello once more on every link: we can show more than before."""
        for peer in self.network.statistics().peers:
            self.handshake.greet(peer)
            if (early := self.handshake.early.pop(peer, None)) is not None:
                self.on_hello(peer, early)

    def on_membership(self, peer: PeerId, message: Records | RecordDigest | Heartbeat) -> None:
        """Pass the members' records about themselves and others to membership."""
        self.perform(*self.membership.receive(peer, message, self.now(), self.wall()))

    def on_letter(self, peer: PeerId, message: Letter) -> None:
        """Pass a letter of the matching on."""
        if self.matching is not None:
            self.matched(self.matching.receive(peer, message.body, self.now()))

    async def _serve_chunk(self, peer: PeerId, request: ChunkRequest) -> None:
        with self._against(peer, "ChunkRequest"):
            await self.shelf.request(peer, request)

    def _view_of(self, change: ViewChanged) -> None:
        """A peer has changed, or several. News of one that has done no work can wait."""
        peer = change.about
        if peer is not None and peer != self.me and change.turned:
            self.event_sink.peer(peer, change.turned, change.reason)
        if peer is not None and change.turned == "down":
            self.downloads.lost(peer)
        if peer is None or not self._is_new(peer):
            self._view_dirty = True
        else:
            self._unseen.add(peer)
            self._view_at = min(self._view_at, self.now() + STRANGERS_WAIT_S)

    def _is_new(self, peer: PeerId) -> bool:
        """Whether a peer has done no work, though work has proven others."""
        history, me = self.history, self.me
        return history is not None and peer != me and history.is_new(peer)

    def _record(self, record: RecordChanged) -> None:
        """Pass a member's record, or its end, to the part that reads it."""
        match record:
            case _ if record.kind == STORED:
                if self.history is not None:
                    self.history.record(record)
            case _ if record.kind == WAYPOINT:
                with self._against(record.signer, WAYPOINT):
                    self.waypoints.record(record)
            case _ if record.kind == MEASURED:
                self.measuring.record(record)
            case RecordChanged(said=None):
                pass
            case _ if record.kind in (PROGRESS, HELD_OUT):
                self._loss_reports.heard(record.kind)
            case _ if self.matching is not None and record.signer != self.me:
                said = record.signer, record.said, self.now()
                self.matched(self.matching.receive_posting(*said))

    def _refresh(self, *, soon: bool = True) -> None:
        """Pass a changed view on, once per event and not once per effect; ``soon``: tick, too. What
        a peer says that has done no work waits for the next tick: a crowd says much."""
        while self._view_dirty:
            self._view_dirty = False
            self._view_changed()
        if soon:
            self._timer.wake()

    def _view_changed(self) -> None:
        """Pass the view on: to the seats at once, to all that look at every member as often as that
        costs little."""
        self._view_at, self._look_due = math.inf, True
        self._unseen.clear()
        self._look_at_members()
        era, view = self._lineage_view()
        self.held_stages.update_view(view)
        self.waypoints.update(era, view)

    def _lineage_view(self) -> tuple[int, SwarmView]:
        """Return the lineage that we follow, and its live replicas."""
        roster, stages = self.membership.roster, self.manifest.stage_count
        lineage = None if self.history is None else self.history.lineage
        era = era_followed(lineage, roster, self.me)
        return era, swarm_view(roster, stages, era, frozenset(self.network.relays()))

    def _is_proven(self, peer: PeerId) -> bool:
        return self.history is not None and self.history.proves(peer)

    def _proven(self) -> frozenset[PeerId] | None:
        """Return the members that work has proven to us; None while we are linked with none of
        them: then we depend on others."""
        roster = self.membership.roster
        if not any(self._is_proven(member.peer) for member in roster.linked()):
            return None
        return frozenset(filter(self._is_proven, roster.live()))

    def _path_of(self, peer: PeerId) -> Sequence[PeerId]:
        """Return a member's chain of vouches, where members vouch for each other."""
        vouching = self.handshake.vouching
        return () if vouching is None else vouching.register.path(peer)

    def _look_at_members(self) -> None:
        """Look at every member if one has changed and the last look is long enough ago."""
        now, roster = self.now(), self.membership.roster
        if now < self._look_again_at:
            return
        began, self._look_due = time.perf_counter(), False
        self.network.members(roster.live())
        proven, guests = self._proven(), guests_for(self.manifest.stage_count)
        self.network.trust(proven, guests)
        roster.trust(proven, guests)
        wanted = {**self._electors_to_reach(), **self.kept_links.wanted(roster)}
        if (vouching := self.handshake.vouching) is not None:
            wanted = {p: w for p, w in wanted.items() if vouching.register.standing(p)}
        self.network.want(wanted)
        if self.matching is not None:
            newest = self.waypoints.machine.newest
            members = matching_members(
                roster,
                self.me,
                self.measuring.believed,
                self.membership.unproven(),
                self._path_of,
                frozenset() if newest is None else newest.peers,
            )
            self.matched(self.matching.update_members(members, self.now()))
        if self.history is not None:
            self.history.update(self.membership, self._lineage_view()[1])
        self._look_again_at = now + REST * (time.perf_counter() - began)

    def _electors_to_reach(self) -> dict[PeerId, Sequence[str]]:
        """Return the electors of a lineage that has not made a step, with their addresses: in a
        large swarm they need not be neighbours of those who lead."""
        roster = self.membership.roster
        if self.history is None or roster.is_full_mesh():
            return {}
        machine = self.history.machine
        named = () if machine.known.has_begun() else map(PeerId, machine.lineage.electors)
        there = {*roster.live()} - {self.me}
        return {peer: roster.addresses(peer) for peer in named if peer in there}

    def ability_changed(self) -> None:
        unable = self.held_stages.unable()
        if self.matching is not None and unable != self.matching.context.unable:
            self.matched(self.matching.set_unable(unable, self.now()))
            self.own_advert.change(unable=tuple(sorted(unable)))

    def seats_changed(self) -> None:
        """Tell the neighbours the state of our seats."""
        seats = self.held_stages.seats()
        self._seat_numbers = {seat.stage: seat.seat for seat in seats}
        self.perform(*self.membership.set_seats(seats, self.now()))
        self.measuring.seated(seats, self.now())
        self._view_dirty = True
        self._timer.wake()

    def matched(self, effects: list[Effect | Assign | Unassign]) -> None:
        """Perform what the matching decided."""
        for effect in effects:
            match effect:
                case Assign(stage, reason):
                    self.event_sink.assigned(stage, "held", reason)
                    self.held_stages.assign(stage)
                case Unassign(stage, reason):
                    self.event_sink.assigned(stage, "left", reason)
                    self.held_stages.drain(stage)
                case _:
                    self.perform(effect)
        seats = self.held_stages.seats()
        if any(self._seat_numbers.get(seat.stage) != seat.seat for seat in seats):
            self.seats_changed()  # the second stage has become our home

    def serving(self, stage: int) -> None:
        """A seat serves: tell the matching."""
        self.event_sink.assigned(stage, "serving", f"serving stage {stage}")
        if self.matching is not None:
            with suppress(LocalProtocolError):  # unassigned in the meantime
                self.matched(self.matching.serving(Stage(stage), self.now()))

    def lost(self, stage: int, reason: str) -> None:
        """A stage cannot be held: tell the matching."""
        self.event_sink.assigned(stage, "left", reason)
        if self.matching is not None:
            with suppress(LocalProtocolError):
                self.matched(self.matching.lost(Stage(stage), reason, self.now()))

    def seat_of(self, stage: int) -> int:
        """Return 0 for our home, 1 for our second stage."""
        return 0 if self.matching is None else self.matching.seats.seat_of(Stage(stage))

    def seat_tells(self, news: SeatNews) -> None:
        """A seat of ours tells what concerns more than its stage."""
        match news:
            case Committed():
                if self.history is not None:
                    self.history.closed(news)
                self.waypoints.closed(news)
                self.contributions.closed(news)
                self.measuring.closed(news, self.now())
                self._loss_reports.closed(news, self.held_stages.view)
            case HeldOutLoss():
                self._loss_reports.found(news)
            case Verdict():
                self.expulsions.voted_out(news)

    def drain(self) -> None:
        """Leave the matching; every stage of ours is drained."""
        if self.matching is not None:
            self.matched(self.matching.leave(self.now()))

    def offer_no_seats(self) -> None:
        """Stay a member without seats until ``describe``; call ``drain`` first."""
        self.matching = None
        self.own_advert.change(seats=0, unable=())
