"""One seat: everything a volunteer does as a replica of one stage.

Composes pipeline (microbatches), round (member and leader) and, at stage 0, leases. Messages to
ourselves never leave it. A seat that joins a running stage first observes: it collects every
round's broadcasts from the version it downloads, applies them once that is loaded, and then serves.

State: the current step, and through its parts the microbatches, ledgers and round of that step. It
may not touch tensors, clocks or sockets; ``now`` is monotonic seconds, effects say what to do.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace as replaced
from operator import attrgetter
from typing import Final, Literal

from msgspec.structs import replace

from protocol.amendments.book import Amendments
from protocol.answer import YES, Answer, no
from protocol.audit.charges import Charge
from protocol.audit.terms import AuditTerms
from protocol.decree.decree import READY, bound_by, promises_of, voters
from protocol.decree.elector import INSISTS, MAX_COMMITS, Elector
from protocol.effects import Effect, Explain, Penalise, Send
from protocol.ids import PeerId, short
from protocol.manifest import Evaluation
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    Committed,
    CompareTask,
    Compute,
    ContributeTask,
    DecodeTask,
    DropStep,
    Fault,
    ForwardTask,
    HashTask,
    Keep,
    KeepVersionTask,
    LossTask,
    Outcome,
    PassTask,
    PayloadKey,
    ReduceTask,
    Task,
)
from protocol.pipeline.ledger import count_of, to_bitmap
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.rounds.effects import CommitTo
from protocol.rounds.leader import RoundLeader
from protocol.rounds.member import Progress, RoundMember
from protocol.rounds.obstruction import Obstruction, Wait
from protocol.rounds.plans import reduced_key
from protocol.rounds.quorum import Quorum
from protocol.rounds.shards import longest_s, most_segments
from protocol.seat.auditing import Auditing
from protocol.seat.catching_up import CatchingUp
from protocol.seat.charging import Charging
from protocol.seat.early_messages import MAX_STEPS_AHEAD, SERVING_STEPS_AHEAD, EarlyMessages
from protocol.seat.effects import (
    SeatEffect,
    Snapshot,
    StatusChanged,
)
from protocol.seat.evaluating import Evaluating
from protocol.seat.givers import Givers
from protocol.seat.leases import Leases
from protocol.seat.leasing import Leasing
from protocol.seat.reporting import Reporting
from protocol.seat.routing import may_send, stamped, turned_away
from protocol.seat.showing import Showing
from protocol.seat.standing import Proves, Standing
from protocol.verdicts import Verdict
from protocol.view import SwarmView, leaders
from protocol.wire.messages import (
    Admit,
    AuditReply,
    Commit,
    Commitment,
    JoinStage,
    LedgerReport,
    Message,
    Plan,
    Propose,
    Ready,
    Reduced,
    RoundMessage,
    SeatMessage,
    Segment,
)
from protocol.wire.parts import Ballot, SeatStatus
from protocol.wire.statement import Statement, encode_statement

WITNESSES: Final = 2
"""One of two that say so is honest."""


class Seat:
    """See the module's docstring.

    A handler (``on_…``) takes the ``sender``, its ``message`` and ``now`` (monotonic seconds), and
    returns effects; ``digest`` names the payload.

    Args:
        size: elements of the stage's flat gradient.
        tokens_per_step: tokens all microbatches of a step predict together.
        step: version the seat starts with (or observes from).
        serving: False to join as an observer.
        quorum: knows the electors of the lineage's first step.
        promise: that of our last seat in this stage and lineage (``RoundMember.promise``).
        proves: whether a step that this volunteer has closed contains a peer's work; None: nobody
            is on probation.
        audits: what audits go by; None: the run has none.
        evaluation: how versions are evaluated; None: they are not.
        amendments: what this volunteer knows of the founder's; they say how long the run is.
        at_once: tasks that the worker runs at a time.
        number_bytes: of a number on its way in a round.
    """

    def __init__(
        self,
        place: Place,
        *,
        size: int,
        tokens_per_step: int,
        step: int,
        serving: bool,
        quorum: Quorum,
        elector: Elector,
        promise: tuple[int, int],
        proves: Proves | None,
        audits: AuditTerms | None,
        evaluation: Evaluation | None,
        amendments: Amendments,
        at_once: int,
        number_bytes: float,
    ) -> None:
        self.place, self.size, self.step, self.serving = place, size, step, serving
        self._tokens_per_step = tokens_per_step
        self._view = SwarmView(((),) * place.stages)
        """Of those that count, as our parts know it."""
        self._unhashed: Committed | None = None
        """Our version, while its hash is not known."""
        self._waiting: tuple[PeerId, Plan, Answer] | None = None
        """The plan of the last attempt that we do not follow yet, its sender, and why."""
        audits = audits or AuditTerms()
        self._verdicts = audits.verdicts
        # a part knows those made before it, and none after it
        self.elector, self.quorum = elector, quorum
        self._amendments, self.amended = amendments, b""
        """The amendment of the last step that we have closed; empty before the first one."""
        self.pipeline = Pipeline(place, step, at_once=at_once)
        self.commitments = Commitments(place.me, active=audits.budget > 0)
        audited = self.commitments.active
        self.standing = Standing(place, self.quorum, proves, self._spoilers, audited=audited)
        self.leases, self.leasing = Leases(step, place.per_step), Leasing(place, self.pipeline)
        self._compose_audits(audits)
        self.evaluating = Evaluating(
            place, self.standing, evaluation, step, lambda: amendments.steps
        )
        self._compose_round(promise, longest_s(size, number_bytes))
        self._early = EarlyMessages(most_segments(size))
        self._reporting = Reporting()
        self._drain_began = step
        self._told = self._news()
        """What our neighbours were told of us at once."""
        self._catching_up = CatchingUp(place.stage)

    def _compose_audits(self, terms: AuditTerms) -> None:
        """Make what audits others, and what others audit us by."""
        commitments = self.commitments
        self.showing = Showing(self.place, commitments)
        self.charging = Charging(self.place, terms, self._judges_of)
        self.auditing = Auditing(self.place, terms, commitments, self.showing, self.charging)
        self.givers = Givers(self.place, self.standing, terms)

    def _compose_round(self, promise: tuple[int, int], round_s: float) -> None:
        """Make what closes a step; the bytes of a round take ``round_s`` at most."""
        self._obstruction = Obstruction(round_s)
        self.member = RoundMember(
            self.place,
            self.size,
            self.step,
            accumulator=self.pipeline,
            loaded=self.serving,
            promise=promise,
            commitments=self.commitments,
            contributed=self.showing.contributed,
            closing=self.auditing.closing,
            rate=self._amendments.rate,
            sign=self._sign_ready,
            roll=lambda: self.quorum.roll,
        )
        self.leader = RoundLeader(
            self.place,
            self.size,
            self.step,
            member=self.member,
            quorum=self.quorum,
            elector=self.elector,
            amendments=self._amendments,
            lets_in=self.standing.lets_in,
            returned=self._is_returned,
            left_behind=lambda: self._catching_up.unanswered,
            obstruction=self._obstruction,
        )

    # --- queries ---------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the run's last version is in force here."""
        return self._is_over and not self.member.hashing

    @property
    def _is_over(self) -> bool:
        return self.step >= self._amendments.steps

    def status(self, rate: float) -> SeatStatus:
        """Return what heartbeats say of this seat; ``rate`` in microbatches per second."""
        stage, queue = self.place.stage, self.pipeline.queued
        state: Literal["serving", "fetching"] = "serving" if self.serving else "fetching"
        return SeatStatus(
            stage,
            self.step,
            state,
            queue,
            rate,
            era=self.place.era,
            leaving=self.draining,
            moved=(len(self.pipeline.done()) + self.member.received) % 2**16,
            missing=self.standing.missing(self.step),
            audited=tuple(self.auditing.agreed_with(self.standing.seen)),
            returned=self._news()[2],
        )

    def _news(self) -> tuple[int, bool, bool]:
        """Return what neighbours are told at once: our version, whether we serve, and whether our
        stage has all gradients of the step, as far as we know."""
        return self.step, self.serving, self.leader.whole and not self._is_over

    def why(self) -> str:
        """Return one sentence about what the seat is doing, for whoever runs it."""
        stage = f"stage {self.place.stage}"
        for may in (self._may_serve(), self.may_train()):
            if not may:
                return f"{stage}: {may.reason}"
        counted = f"{len(self.pipeline.done())}/{self.place.per_step} counted here"
        begun = self.member.plan_followed is not None and not self.leader.proposes
        round_now = self.member.why() if begun else self.may_close().reason or "closing"
        led_by = short(self.current_leader() or "?")
        return f"{stage}, {counted}; step {self.step}: {round_now}; led by {led_by}"

    def _may_serve(self) -> Answer:
        """Whether we are a replica of the stage, and not an observer that catches up."""
        left = "what was closed meanwhile is applied"
        if not self.member.loaded:
            left = "the state is on its way"
        return YES if self.serving else no(f"catching up at version {self.step}: {left}")

    def may_train(self) -> Answer:
        """Whether microbatches of our step may be leased: every stage has a replica."""
        if self._is_over:
            return no("the run is complete")
        if missing := self._view.empty_stages():
            return no(f"waiting for a volunteer in stage {', '.join(map(str, missing))}")
        return YES

    def may_close(self) -> Answer:
        """Whether the step may be closed as far as we know; a replica that does not lead it follows
        the leader's plan."""
        if self._waiting is not None:
            return self._waiting[2]
        if (led_by := self.current_leader()) != self.place.me:
            return no(f"waiting for the plan of {short(led_by or '?')}")
        return self.leader.may_plan

    def current_leader(self) -> PeerId | None:
        """Return the leader of our step, by our view."""
        return next(iter(self._line()), None)

    def _line(self) -> list[PeerId]:
        """Return the leaders of our step, in order: who is past it leads those behind no more."""
        view, stage, step = self.standing.view, self.place.stage, self.step
        here = {r.peer for r in view.serving(stage) if r.version <= step}
        line = leaders(view, stage, step, among=self.quorum.roll & here)
        return [peer for peer in line if peer in here]

    # --- inputs ----------------------------------------------------------------------------

    def update_view(self, view: SwarmView, now: float) -> list[SeatEffect]:
        """Take a new view of the swarm's live replicas."""
        self.standing.update(view, now)
        return self._settle([*self._watch(now), *self._take_view(now)], now)

    def _take_view(self, now: float) -> list[SeatEffect]:
        """Go by those that count now."""
        view, bound, stage = self.standing.view, self.standing.bound, self.place.stage
        lost = self._lost(view, self.place.stage)
        if lost or self._lost(view, self.place.stage + 1):
            self._obstruction.lost_one(now)
        if lost:
            self.member.lost_one()
        self._view = view
        self.quorum.observe(self.standing.whole, now)
        effects = self._freed(self.pipeline.update_view(view, now, bound(stage + 1)), now)
        effects += self.auditing.update_view(view, now)
        effects += self.charging.update_view(self.standing.whole, now)
        effects += self.givers.look(now)
        was_leading = self.leader.leading
        effects += [*self._follow_siblings(now), *self._lead(now)]
        self.leases.bound = bound(stage)
        if self.leader.leading and not was_leading:
            self.leases.take_over()
        if self.draining and not view.staying(stage, self.place.me):
            # those we left the work to drain as well: take the step whole in which we began to
            self.pipeline.refused_from = self._drain_began + 1
        return effects

    def _lost(self, view: SwarmView, stage: int) -> set[PeerId]:
        """Return the replicas that served a stage until now, and do not in a new view."""
        after = {r.peer for r in view.serving(stage)}
        return {r.peer for r in self._view.serving(stage)} - after

    def _spoilers(self) -> set[PeerId]:
        """Return the peers whose fault we have seen ourselves: we have refused something of theirs
        in this step, have found them out by an audit, or do not vote for what they propose."""
        found = self.member.spoilers, self.charging.found_out(), self.elector.liars()
        return set[PeerId]().union(*found)

    def _siblings(self) -> set[PeerId]:
        """Return the replicas of our stage, ourselves included."""
        return {r.peer for r in self._view.serving(self.place.stage)}

    def _watch(self, now: float) -> list[SeatEffect]:
        """Look for the peers that the step waits for, by us and by others' claims. Without a
        majority of the electors we could not close it anyway: then we blame nobody."""
        waits: list[Wait] = []
        there = self._siblings()
        if self.serving and not self._is_over and self.quorum.holds(now):
            led_by, leases = self.current_leader(), self.place.first and bool(self.may_train())
            plan = self.member.plan_followed
            gone = {PeerId(m.peer) for m in plan.members} - there if plan else set[PeerId]()
            unplanned = led_by if plan is None else None
            others = self.leader.awaited(unplanned, now, leases=leases)
            waits = [*self.member.awaited(gone, led_by), *others]
            waits += [("spoilt", peer) for peer in sorted(self.elector.liars(INSISTS) & there)]
        siblings = self.standing.seen.serving(self.place.stage)
        excused = frozenset(r.peer for r in siblings if not there.isdisjoint(r.missing))
        excused |= {self.place.me}  # while behind, we lead nothing, and do not blame ourselves
        rate = next((r.rate for r in siblings if r.peer == self.place.me), 0.0)
        claims = self._obstruction.claims(waits, excused, 1 / rate if rate else 0.0, now)
        return [*self.standing.observe(claims, now, self._amendments.steps)]

    def admitted_by(self, admit: Admit, now: float) -> None:
        """Begin with what a leader told us when it admitted us: the hash and the commit of its
        version, which is ours, and who has the state that we fetch."""
        self.member.state = admit.state
        decree = admit.commit.decree
        self.elector.take(admit.commit, checked=True)
        self.quorum.settle(decree.members, decree.electors, admit.version, now)
        self.standing.admit(map(PeerId, admit.donors), now)

    @property
    def draining(self) -> bool:
        """Whether we leave: we finish what is begun, and bring it into the round of its step."""
        return self.pipeline.refused_from is not None

    @property
    def drained(self) -> bool:
        """Whether we drain, and no peer can ask for anything any more: our stage and both
        neighbours have closed every step that we worked on. The driver limits the time."""
        waiting = self.member.progress is Progress.WAITING and not self.member.hashing
        return self.draining and waiting and self.pipeline.empty

    def drain(self, now: float) -> list[SeatEffect]:
        """Take no new work, and return what is not begun. Where no sibling stays to take it, we
        compute the whole current step all the same."""
        alone = not self._view.staying(self.place.stage, self.place.me)
        self._drain_began = self.step
        return self._settle([*self.pipeline.refuse_from(self.step + alone)], now)

    def stay(self) -> None:
        """Drain no more."""
        self.pipeline.refused_from = None

    def receive(
        self, sender: PeerId, message: Message, now: float, digest: bytes = b""
    ) -> list[SeatEffect]:
        """Take a message of the peer at the other end of a link; ``digest`` is of its payload,
        which the task checks, or of an audit's list the list itself."""
        route, stage = message.route, self.place.stage
        if not may_send(route, self.standing.seen if route.aside else self._view, stage, sender):
            refused = turned_away(stage, sender, message)
            if refused or self.standing.is_aside(sender) or self.standing.waits(sender):
                return refused
            return [Penalise(sender, "not-from-a-neighbour", 1)]  # or its heartbeat is on its way
        if isinstance(message, SeatMessage) and message.era != self.place.era:
            return turned_away(stage, sender, message)
        effects = self._take(sender, message, now, digest)
        if route.work and any(isinstance(effect, Keep) for effect in effects):
            self.standing.worked(sender, now)
        return self._settle(effects, now)

    def computed(self, task: Task, outcome: Outcome, now: float) -> list[SeatEffect]:
        """Take the ``outcome`` of a ``task`` at ``now``; its payloads are stored already."""
        return self._settle(self._outcome(task, outcome, now), now)

    def state_loaded(self, now: float) -> list[SeatEffect]:
        """Our version's state is in the worker: catch up with the rounds since."""
        return self._settle(self.member.state_loaded(), now)

    def tick(self, now: float) -> list[SeatEffect]:
        """Act on deadlines that have passed; call it every ``LOOK_S``."""
        effects: list[SeatEffect] = [*self.pipeline.deliveries.tick(now), *self.leader.tick(now)]
        effects += [*self._watch(now), *self.auditing.tick(now)]
        effects += self.givers.tick(now)
        effects += self.showing.tick(self.auditing.step, now)
        effects += self._follow_siblings(now)
        return self._settle(effects, now)

    # --- messages --------------------------------------------------------------------------

    def _take(
        self, sender: PeerId, message: Message, now: float, digest: bytes = b""
    ) -> list[SeatEffect]:
        """Hand a message to what takes it in our present state."""
        route = message.route
        if isinstance(message, Propose):
            return self._as_elector(sender, message)
        if route.early and isinstance(message, RoundMessage) and message.step > self.step:
            return self._take_early(sender, message, digest)
        if route.taker != "seat" or not (self.serving or route.observing):
            return turned_away(self.place.stage, sender, message)
        handle = attrgetter(route.handler)(self)
        return [*handle(sender, message, *((digest,) if route.sealed else ()), now)]

    def _take_early(self, sender: PeerId, message: RoundMessage, digest: bytes) -> list[SeatEffect]:
        """Keep what is said of a later step until we get there, unless we never do."""
        if isinstance(message, Commit):
            self._catching_up.passed |= self._is_voted_for(message)
            if sender not in self._siblings():
                return []  # it proves nothing yet; who keeps it catches up before it serves
        if message.step > self.step + (SERVING_STEPS_AHEAD if self.serving else MAX_STEPS_AHEAD):
            return []  # our siblings' heartbeats say how far behind we are
        if self._early.keep(sender, message, digest) and isinstance(message, Reduced):
            return [Keep((reduced_key(sender, message),))]
        return []

    def on_plan(self, sender: PeerId, message: Plan, now: float) -> list[SeatEffect]:
        """Follow a plan once the stage before has all gradients of the step, and while it keeps the
        electors that we hear."""
        if not self._is_attempt_of(sender, message):
            return []
        if not (answer := self._may_follow(sender, message, now)):
            # a majority has promised to take part in no earlier one
            if self._waiting is None or message.attempt >= self._waiting[1].attempt:
                self._waiting = sender, message, answer
            return []
        self.standing.admit((PeerId(member.peer) for member in message.members), now)
        failed = self.member.plan_followed if self.member.ready else None
        effects: list[SeatEffect] = [*self.member.plan(sender, message)]
        if self.member.plan_followed is not message:
            return effects
        if failed is not None:
            effects += self.auditing.failed(failed)
        self._obstruction.planned(sender, now)
        return [*effects, *self.pipeline.planned(self.member.counted)]

    def _is_attempt_of(self, sender: PeerId, plan: Plan) -> bool:
        """Whether a step's attempt is its sender's: the first one is that of the leader whom the
        decree before designates; a later one takes the promises of a majority of the electors, that
        have voted for nothing. So nobody leaves an attempt that may be decreed."""
        if plan.attempt == 1:
            return sender == self.quorum.designated
        where = Ballot(plan.stage, self.place.era, plan.step, plan.attempt, sender, 0, b"")
        electors = self.quorum.electors
        promised = promises_of(where, plan.promises, electors, self.elector.verify)
        return not bound_by(promised.values(), electors) and self.quorum.suffice(promised)

    def _may_follow(self, sender: PeerId, plan: Plan, now: float) -> Answer:
        """Whether we follow a plan now: the stage before has all gradients of the step, none of its
        members is expelled, the next step can be closed with the electors that it names, and its
        amendment may hold. Our own plan names whom we see; a plan that is committed is followed all
        the same."""
        may = YES
        if not self.member.knows_commit:
            members = [PeerId(member.peer) for member in plan.members]
            may = self._is_free_of_expelled(members)
            if self.serving:
                may = may and self._is_returned()
            if self.serving and sender != self.place.me:
                named = list(map(PeerId, plan.electors))
                may = may and self.quorum.keeps(members, named, self._view, now)
        return may and self._amendments.may_hold(plan.amended, plan.step, self.amended)

    def _is_free_of_expelled(self, members: Collection[PeerId]) -> Answer:
        """Whether we may contribute to a sum of these members."""
        out = next((peer for peer in members if peer in self._verdicts), None)
        if out is None or self.place.me not in members:
            return YES
        return no(f"a plan is not followed with {short(out)}, which is expelled")

    def on_tensor(
        self, sender: PeerId, message: Segment | Reduced, digest: bytes, now: float
    ) -> list[SeatEffect]:
        """Take a member's contribution to a segment that we own, or an owner's sum of its own."""
        effects: list[SeatEffect] = [*self.member.take(sender, message, digest)]
        if any(isinstance(effect, Keep) for effect in effects):
            self._obstruction.arrived()
        return effects

    def on_commitment(self, sender: PeerId, message: Commitment, now: float) -> list[SeatEffect]:
        """Take what a member commits to; the round may wait for it."""
        if not self.commitments.active:
            return []
        self.commitments.take(sender, message)
        return [*self.member.exchange()]

    def on_shown(
        self, sender: PeerId, message: AuditReply, digest: bytes, now: float
    ) -> list[SeatEffect]:
        """Take what a member shows of what it has committed to: a sibling, or a giver of ours."""
        if message.said is not None:
            return [*self.givers.on_list(sender, message, digest, now)]
        return [*self.auditing.on_reply(sender, message, digest, now)]

    def on_join(self, sender: PeerId, message: JoinStage, now: float) -> list[SeatEffect]:
        """Note a newcomer that asks for admission, unless it is set aside."""
        if self.standing.is_aside(sender):
            return []
        self.leader.admissions.ask(sender, now)
        return [*self.leader.tick(now)]

    def _sign_ready(self, ready: Ready) -> Ready | None:
        """Return our Ready with its signature; None: we have signed another one."""
        said = Statement(ready.stage, self.place.era, ready.step, ready.attempt, ready.digest)
        signature = self.elector.sign(READY, encode_statement(said))
        return replace(ready, signature=signature) if signature else None

    def _now_confirmed(self, now: float) -> list[SeatEffect]:
        """Follow the plan that waits, if we may by now."""
        waiting, self._waiting = self._waiting, None
        return [] if waiting is None else self._take(*waiting[:2], now)

    def on_commit(self, sender: PeerId, message: Commit, now: float) -> list[SeatEffect]:
        """Learn that the step is closed, whoever says so: the votes prove it."""
        if message.step != self.step or self.member.knows_commit:
            return []
        if not self._is_voted_for(message):
            return []
        self.elector.take(message, checked=True)
        effects: list[SeatEffect] = [*self.member.committed(message.decree)]
        effects += self._now_confirmed(now)
        there = {r.peer for r in self.standing.whole.serving(self.place.stage)}
        if self.serving and self.member.is_left_out and there - {self.place.me}:
            words = f"step {self.step} was closed with what we do not have"
            effects.append(Fault("behind", words))
        return effects

    def _is_voted_for(self, commit: Commit) -> bool:
        """Whether most of our electors have closed a step: ours, or a later one, and so ours as
        well."""
        return self.quorum.suffice(voters(commit, self.quorum.electors, self.elector.verify))

    def _as_elector(self, sender: PeerId, message: Propose) -> list[SeatEffect]:
        """Answer as an elector of our own stage."""
        answer = self.elector.answer(sender, message)
        if isinstance(answer, Penalise):
            return [answer]
        return [] if answer is None else [Send(sender, answer)]

    def on_admit(self, sender: PeerId, message: Admit, now: float) -> list[SeatEffect]:
        """Note that a newcomer is admitted, and snapshot our version for it if we are a donor."""
        joiner = PeerId(message.joiner)
        may_lead = sender in self.quorum.roll or self.quorum.roll.isdisjoint(self._siblings())
        if not (may_lead and self.standing.lets_in(joiner, now)):
            return []
        if not self.leader.admissions.admitted(joiner, now):
            return []
        self.standing.admit([joiner], now)
        gives = self.place.me in message.donors and message.version == self.step and self.serving
        return [Snapshot(self.step)] if gives else []

    # --- outcomes --------------------------------------------------------------------------

    def _outcome(self, task: Task, outcome: Outcome, now: float) -> list[SeatEffect]:
        match task:
            case ForwardTask() | LossTask() | BackwardTask():
                return [*self.pipeline.computed(task, outcome, now), *self.member.advance()]
            case PassTask(into="less"):
                return [Fault("internal", "subtracting failed")] if outcome.error else []
            case PassTask(into="loss"):
                return self.evaluating.computed(task, outcome)
            case (
                PassTask() | KeepVersionTask() | CompareTask() | ReduceTask(compare_to=PayloadKey())
            ):
                return self.auditing.computed(task, outcome, now)
            case ContributeTask() | ReduceTask() | DecodeTask():
                return [*self.member.computed(task, outcome)]
            case ApplyTask():
                return self._applied(outcome, now)
            case HashTask():
                return self._hashed(outcome, now)

    def committed(self, commit: CommitTo, signed: Commitment, now: float) -> list[SeatEffect]:
        """Our commitment is signed."""
        self.commitments.take(self.place.me, signed)
        told = [Send(peer, signed) for peer in commit.peers]
        return self._settle([*told, *self.member.exchange()], now)

    def _judges_of(self, charge: Charge) -> Collection[PeerId]:
        """Return the members of a stage whose charges count: those of the decree that closed the
        step of a charge, so that all who have it agree on the majority. Else of our stage the roll;
        of another one the proven replicas, because anybody may say that it serves."""
        stage = charge.stage
        closed = self.elector.commit(stage, self.place.era, charge.step)
        if closed is not None and closed.decree.attempt == charge.attempt:
            return list(map(PeerId, closed.decree.members))
        if stage == self.place.stage:
            return self.quorum.roll
        there = self.standing.seen.serving(stage) if 0 <= stage < self.place.stages else ()
        return [r.peer for r in there if self.standing.is_proven(r.peer)]

    def _freed(self, effects: Iterable[SeatEffect], now: float) -> list[SeatEffect]:
        """What the neighbours need no more, auditors may, for a while."""
        freed = list[SeatEffect]()
        for effect in effects:
            if isinstance(effect, DropStep) and self.commitments.active:
                freed += self.showing.dropped(effect.step, self.auditing.step, now)
            else:
                freed.append(effect)
        return freed

    def _expel(self, out: Verdict) -> list[SeatEffect]:
        """A majority of a stage wants one of its members out."""
        if out.culprit == self.place.me:
            words = f"our stage does not work with us any more: {out.words}"
            return [Explain("membership", words, "error")]
        if not self.member.expelled(out.culprit):
            return []
        words = f"step {self.step}: what {short(out.culprit)} contributed is taken out"
        return [Explain("round", words, "warning", (out.culprit,))]

    def _applied(self, outcome: Outcome, now: float) -> list[SeatEffect]:
        """Version t has become t + 1: everything starts over for the next step."""
        if outcome.error:
            return list(self.member.not_applied(outcome))
        decree, plan = self.member.decree, self.member.plan_followed
        if decree is None or plan is None:
            return []
        given = self.pipeline.given()
        committed = Committed(
            stage=self.place.stage,
            version=self.step + 1,
            hash="",
            loss=decree.loss_sum / self._tokens_per_step if self.place.last else None,
            grad_norm=outcome.grad_norm,
            counted=len(self.member.counted),
            attempt=decree.attempt,
            own_loss=self._own_loss(),
            era=self.place.era,
            roll=tuple(map(PeerId, decree.members)),
            shares=tuple(count_of(member.counted) for member in plan.members),
            electors=tuple(map(PeerId, decree.electors)),
            with_whom=frozenset(self.member.senders().union(peer for _, peer in given)),
        )
        self.standing.closed_with(committed.with_whom)
        if self.commitments.active:
            self.givers.closed(self.step, given)
        self.quorum.settle(decree.members, decree.electors, self.step + 1, now)
        self.step, self.amended, self._waiting = self.step + 1, plan.amended, None
        self._catching_up.caught_up()
        self._obstruction.closed(now)
        self.evaluating.start_step(self.step)
        begun = self._begin_round(committed, outcome.hash, now)
        effects: list[SeatEffect] = [*begun, *self.charging.verdicts(now)]
        effects += [*self._lead(now), *self.pipeline.start_step(self.step, now)]
        self.leases.start_step(self.step)
        self.leasing.start_step()
        for sender, message, digest in self._early.take(self.step):
            replayed = self._take(sender, message, now, digest)
            effects += [e for e in replayed if not isinstance(e, Keep)]  # kept on arrival
        return effects

    def _begin_round(self, committed: Committed, known: str, now: float) -> list[SeatEffect]:
        """Begin the round of a step, whose version's hash is ``known``, or else computed now. Who
        catches up is silent about a version that others have left already."""
        state, said = bytes.fromhex(known) if known else None, list[SeatEffect]()
        if known:
            said.append(replaced(committed, hash=known))
        elif not self.serving and self._most_are_past():
            state = b""
        else:
            self._unhashed = committed
            said.append(Compute(HashTask(self.step)))
        self.member.start_step(self.step, state or b"", hashing=state is None)
        return [*said, *self.leader.start_step(self.step, now)]

    def _hashed(self, outcome: Outcome, now: float) -> list[SeatEffect]:
        """The hash of our version is known: it is in force, and we may report our ledger."""
        if outcome.error or self._unhashed is None:
            return [Fault("internal", f"hashing version {self.step} failed: {outcome.error}")]
        committed, self._unhashed = replaced(self._unhashed, hash=outcome.hash), None
        known = self.member.hashed(bytes.fromhex(outcome.hash))
        return [committed, *known, *self.leader.tick(now)]

    def _own_loss(self) -> float | None:
        """Return the mean token loss of our microbatches in the step; None: we had none."""
        counted = self.member.counted
        if not self.place.last or not counted:
            return None
        tokens = self._tokens_per_step / self.place.per_step * len(counted)
        return self.pipeline.loss_sum(counted) / tokens

    def _try_serve(self) -> list[SeatEffect]:
        """An observer with nothing left to apply becomes a replica."""
        rest = self.member.knows_commit or self._most_are_past()
        if self.serving or not self.member.loaded or rest:
            return []
        self.serving = True
        return [Explain("transfer", f"serving from version {self.step}")]

    def _most_are_past(self, steps: int = 0) -> bool:
        """Whether most siblings that serve are further past our step than so many steps, by what
        they say: one alone would make a newcomer wait for ever, or fetch the state again and again.
        """
        stage, me = self.place.stage, self.place.me
        seen, whole = self.standing.seen.serving(stage), self.standing.whole.serving(stage)
        there = [r for r in seen if r.peer != me] or [r for r in whole if r.peer != me]
        past = [r for r in there if r.version > self.step + steps]
        return 2 * len(past) > len(there)

    # --- following and leading -------------------------------------------------------------

    def _lead(self, now: float) -> list[Effect]:
        leading = self.current_leader() == self.place.me and self.serving
        return self.leader.update_view(self._view, leading, now)

    def _follow_siblings(self, now: float) -> list[SeatEffect]:
        """Ask a sibling that is ahead of us for the commit of our step, which may have been lost:
        what it says of its version proves nothing."""
        if not self.member.loaded and self._most_are_past(MAX_STEPS_AHEAD):
            return [Fault("behind", f"more than {MAX_STEPS_AHEAD} rounds behind")]
        if not self.member.loaded or self.member.applying or self.member.hashing or self._is_over:
            self._catching_up.caught_up()
            return []
        stage, there = self.place.stage, self.standing.whole.serving
        siblings = [r for r in there(stage) if r.peer != self.place.me]
        ahead = [r.peer for r in siblings if r.version > self.step]
        others = (*there(stage - 1), *there(stage + 1))
        beside = [r.peer for r in others if r.version > self.step + 1]
        far = not self.serving and (not siblings or self._most_are_past(MAX_COMMITS))
        alone = far or (self._most_are_past() and not self.quorum.holds(now))
        known = self.member.knows_commit
        return [*self._catching_up.look(ahead, beside, self.step, now, known=known, alone=alone)]

    # --- settling --------------------------------------------------------------------------

    def _settle(self, effects: Iterable[SeatEffect], now: float) -> list[SeatEffect]:
        """Hand parts of the seat what others have for them, and follow up until nothing more
        happens; return what is left to the driver."""
        outward, us = list[SeatEffect](), (self.place.me, self.place.stage)
        pending = deque(effects)
        while pending or (pending := deque(self._follow_up(now))):
            effect = pending.popleft()
            match effect:
                case Send(peer, message) if (peer, message.addressed_stage) == us:
                    pending += self._take(peer, message, now)
                case Charge():
                    pending += self.charging.charge(effect, now)
                case Verdict():
                    outward.append(effect)
                    pending += self._expel(effect)
                case _:
                    outward.append(effect)
        if (news := self._news()) != self._told:
            self._told = news
            outward.append(StatusChanged())
        return stamped(outward, self.place.era)

    def _follow_up(self, now: float) -> list[SeatEffect]:
        effects = self._take_view(now) if self.standing.view != self._view else []
        effects += self._now_confirmed(now)
        if not self.serving:
            return [*effects, *self._try_serve()]
        effects += self.member.advance()
        idle = self.pipeline.idle and self.member.plan_followed is None
        effects += self.auditing.work(idle=idle, now=now)
        effects += self._evaluate()
        effects += self._report(now)  # before we ask for more: who leads goes by it
        return [*effects, *self._lease(now)] if self.place.first else effects

    def _evaluate(self) -> list[Compute]:
        """Run held-out microbatches, unless the step is being closed."""
        may_begin = not self._view.empty_stages()
        return self.evaluating.work(may_begin=may_begin, free=self.member.plan_followed is None)

    def _report(self, now: float) -> list[SeatEffect]:
        """Tell the leader, and the next ones in line, our ledger of the step, as long as the state
        that it is of is known, and the step is open here."""
        of, member = self.pipeline.work, self.member
        unfit = self._is_over or member.hashing or member.applying
        line = [] if unfit else self._line()
        others = [r.peer for r in self._view.serving(self.place.stage) if r.peer not in line]
        line = [*line, *others] if line else []
        if not (told := self._reporting.due(line, self.step, of, now)):
            return []
        report = LedgerReport(
            stage=self.place.stage,
            step=self.step,
            seq=self._reporting.number,
            done=bytes(of.ledger),
            in_flight=to_bitmap(of.in_flight, self.step, self.place.per_step),
            promised=member.promised,
            state=member.state,
            knows=self.quorum.vouch(self._view, self.standing.is_proven),
        )
        return [Send(peer, report) for peer in told]

    def _is_returned(self) -> Answer:
        """Whether the stage before has all gradients of our step, as it says or has closed it.

        The parameters that make a gradient are replaced once our step is closed: a replica that
        counts a microbatch and withholds its gradient would stop the stage before for good. So
        would one alone that says so, and a friend here: where more are proven, two have to.
        """
        step, before = self.step, self.standing.seen.serving(self.place.stage - 1)
        said = {r.peer for r in before if r.version > step or (r.returned and r.version == step)}
        proven = {r.peer for r in before if self.standing.is_proven(r.peer)}
        enough = len(said & proven) >= WITNESSES if len(proven) > WITNESSES else bool(said)
        if enough or not before:  # nobody is before the first stage
            return YES
        return no("the stage before has not got all gradients of the step yet")

    def _lease(self, now: float) -> list[SeatEffect]:
        """Stage 0: hand out work if we lead, ask for some if we can take it."""
        effects, serving = list[SeatEffect](), self._view.serving(0)
        self.leasing.observe(now)
        if self.leader.leading and self.may_train():
            live = {replica.peer for replica in serving}
            effects += self.leases.grant(self.leader.reports, live, now)
        closed = self._is_over or self.member.knows_commit or self.pipeline.refuses(self.step)
        if not closed and (led_by := self.current_leader()) is not None:
            effects += self.leasing.ask(led_by, self._view, now)
        return effects
