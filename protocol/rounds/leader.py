"""The leader's part in a round: collect ledgers, plan, commit. Any replica can take over.

A plan exists only when the union of the live replicas' ledgers is exactly the step's M microbatches
(I1), and a decree is proposed only when every member is Ready with the same digest. Before that, a
member's death or a ledger that lacks an id counted for it voids the plan; the next plan has a
higher attempt.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import reduce
from operator import or_
from typing import Literal

from msgspec.structs import replace

from protocol import limits
from protocol.amendments.book import Amendments
from protocol.answer import YES, Answer, no
from protocol.decree.decree import READY, agreed
from protocol.decree.elector import Elector
from protocol.effects import Effect, Explain, Penalise, Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, rank, short
from protocol.pace import ANSWER_S, HEARD_S, LOST_S
from protocol.pipeline.ledger import count_of
from protocol.pipeline.place import Place
from protocol.rounds.admissions import Admissions, LetsIn
from protocol.rounds.member import RoundMember
from protocol.rounds.obstruction import Kind, Obstruction, Wait
from protocol.rounds.plans import most_common, split
from protocol.rounds.proposer import Proposer, State
from protocol.rounds.quorum import Quorum
from protocol.rounds.reports import Report, vouched_sum
from protocol.rounds.shards import owning, segmented, shard_bounds
from protocol.view import SwarmView
from protocol.wire.messages import Admit, Commit, LedgerReport, Plan, Ready, Vote
from protocol.wire.parts import Decree
from protocol.wire.statement import Statement, encode_statement

MOST_APART = 2
"""Attempts of a step that are planned anew at once because members hold different gradients: by
then it is no accident, and whoever spoils the round has to go first."""
MOST_VOIDED = 8
"""Plans of a step that reports of one member may void."""
DONORS = 3
MAX_REPORTS = 2 * limits.MAX_REPLICAS_IN_ROUND


Restart = Literal[
    "member lost",
    "ledger changed",
    "nothing came",
    "gradients differ",
    "member came back",
    "leader changed",
]
"""Reason why a round was planned again."""


class RoundLeader:
    """Runs at every replica all the time; acts only while ``leading``. Methods return effects; they
    take a ``sender``, a replica of our stage or an elector, its ``message``, and ``now`` (monotonic
    seconds).

    Args:
        place: where this replica stands.
        size: elements of the stage's flat gradient.
        step: the step that it begins with.
        member: our own replica's part in the round. Once it knows the commit, nothing is planned.
        quorum: knows roll and electors.
        elector: verifies signatures, and keeps the commits of earlier steps.
        amendments: what this volunteer knows of the founder's.
        lets_in: whether a newcomer may be admitted now.
        returned: whether the stage before has got the gradients of the whole step.
        left_behind: whether siblings are past the step, and none of them tells its commit: then we
            ask the electors.
        obstruction: how long is waited for what comes of a plan.
    """

    def __init__(
        self,
        place: Place,
        size: int,
        step: int,
        *,
        member: RoundMember,
        quorum: Quorum,
        elector: Elector,
        amendments: Amendments,
        lets_in: LetsIn,
        returned: Callable[[], Answer],
        left_behind: Callable[[], bool],
        obstruction: Obstruction,
    ) -> None:
        self._place, self._size = place, size
        self._member, self._quorum, self._elector = member, quorum, elector
        self._amendments, self._returned, self._left_behind = amendments, returned, left_behind
        self._view = SwarmView(((),) * place.stages)
        self.admissions, self._obstruction = Admissions(lets_in), obstruction
        self._next: dict[PeerId, LedgerReport] = {}
        self.proposer = Proposer(quorum, place.era, elector.verify, self._left_out, self._before)
        self.restarts: Counter[Restart] = Counter()
        """Rounds of all steps that we have planned again, by reason."""
        self._reset(step)
        self.leading = False
        self.may_plan = YES
        """The last answer to whether we, who lead, may plan the step now."""

    def _reset(self, step: int, now: float = math.inf) -> None:
        self.step = step
        self.reports: dict[PeerId, Report] = {}
        self._counted = 0
        """The most microbatches of the step that were counted at any time."""
        self._plan: Plan | None = None
        self._complete_since: float | None = None
        self._answers: dict[PeerId, Ready] = {}
        """By member of the plan: for what it is Ready."""
        self.proposer.start_step(step, now)
        self.refused = ""
        """Why a whole step was not closed when we last looked; empty: it was, or is not whole."""
        self._times_apart = 0
        """Attempts that were planned anew because members held different gradients."""
        self._voided: Counter[PeerId] = Counter()
        """How often a member's ledger no longer fitted a plan."""

    def start_step(self, step: int, now: float) -> list[Effect]:
        """Begin a step; reports that came early count at once."""
        early, self._next = self._next, {}
        self._reset(step, now)
        effects: list[Effect] = []
        for peer, report in early.items():
            if report.step == step:
                effects += self.report(peer, report, now)
        return effects

    def update_view(self, view: SwarmView, leading: bool, now: float) -> list[Effect]:
        """Take a new view of the live replicas, and whether we lead this step."""
        lost = {r.peer for r in self._view.serving(self._place.stage)}
        self._view, self.leading = view, leading
        live = {r.peer for r in view.serving(self._place.stage)}
        for peer in lost - live:  # a report may come before the sender's first heartbeat
            self.reports.pop(peer, None)
            self._next.pop(peer, None)
        planned = [] if self._plan is None or self._proposing else self._plan.members
        if any(member.peer not in live for member in planned):
            self._void("member lost")
        return self.tick(now)

    def _void(self, why: Restart) -> None:
        """Give up the plan; the next one has a higher attempt."""
        self._plan = None
        self.proposer.give_up()
        self.restarts[why] += 1

    # --- ledgers ---------------------------------------------------------------------------

    def report(self, sender: PeerId, message: LedgerReport, now: float) -> list[Effect]:
        """Take a replica's ledger."""
        if message.step == self.step + 1:
            self._next[sender] = message
            return []
        if message.step != self.step:
            return []
        known = self.reports.get(sender)
        if known is None and len(self.reports) >= MAX_REPORTS:
            return []
        if known is not None and message.seq <= known.said.seq:
            return []
        try:
            report = Report.of(message, self._place.per_step)
        except RemoteProtocolError as error:
            return [Penalise(sender, error.reason, error.penalty)]
        if known is not None and known.bits != report.bits:
            del self.reports[sender]  # they stand in the order in which they changed
        self.reports[sender] = report
        if (count := self._count(self.reports)) > self._counted:
            self._counted = count  # what is taken back and reported anew is no work
            self._obstruction.brought()
        plan = self._plan
        if plan is not None and not self._proposing:
            if not self._fits(plan, sender):
                self._void("ledger changed")
                self._voided[sender] += 1
            elif message.promised < plan.attempt and now > self._obstruction.planned_at + ANSWER_S:
                return [Send(sender, plan)]  # it was lost on its way, or refused too early
        return self._act(now)

    def _fits(self, plan: Plan, peer: PeerId) -> bool:
        """Whether a member still has what a plan counts for it. It takes out again what else it
        finishes."""
        member = next((m for m in plan.members if m.peer == peer), None)
        if member is None:
            return not self.reports[peer].bits
        return int.from_bytes(member.counted, "little") & ~self.reports[peer].bits == 0

    def _at_step(self) -> list[PeerId]:
        """Return the live replicas of this step once all have reported, else none. A replica that
        is not on the roll and has not reported only claims to serve, so it is not waited for."""
        at_step = self._serving_step()
        there = [p for p in at_step if p in self.reports]
        return there if there and not self._silent(at_step) else []

    @property
    def whole(self) -> bool:
        """Whether those that have reported have counted the whole step."""
        return self._count(self.reports) == self._place.per_step

    def _count(self, peers: Iterable[PeerId]) -> int:
        """Return how many microbatches these have counted together."""
        return reduce(or_, (self.reports[peer].bits for peer in peers), 0).bit_count()

    def _serving_step(self) -> list[PeerId]:
        stage = self._view.serving(self._place.stage)
        return sorted(r.peer for r in stage if r.version == self.step)

    def _silent(self, at_step: list[PeerId]) -> list[PeerId]:
        """Return the replicas on the roll that have not reported; without any of the roll, all
        silent ones."""
        roll = self._quorum.roll
        counts = [p for p in at_step if p in roll] or at_step
        return [p for p in counts if p not in self.reports]

    # --- obstruction -----------------------------------------------------------------------

    def awaited(self, led_by: PeerId | None, now: float, *, leases: bool) -> list[Wait]:
        """Return the waits of the step as far as we know: what is missing, and from which peer.

        Args:
            led_by: the leader, if it is another replica and we have no plan of this step.
            now: monotonic seconds.
            leases: whether the leader leases the step's microbatches.
        """
        if self._member.knows_commit or self._proposing or not self._serving_step():
            return []
        if not self.leading:
            return [] if led_by is None else self._awaited_of(led_by, leases=leases)
        spoilt = {peer for peer, times in self._voided.items() if times >= MOST_VOIDED}
        spoilt |= self._apart()
        waits: list[Wait] = [("spoilt", peer) for peer in sorted(spoilt)]
        if self._plan is not None:
            kind: Kind = "ready"
            late = [m.peer for m in self._plan.members if m.peer not in self._answers]
        else:
            kind, late = "report", self._not_in_the_step(now)
            if not late and leases:
                waits += self._lessees()
        waits += [(kind, peer) for peer in late]
        return [wait for wait in waits if wait[1] != self._place.me]

    def _lessees(self) -> list[Wait]:
        """Return the replicas that still have some of the step, if we have nothing left of it."""
        ours = self.reports.get(self._place.me)
        if ours is None or ours.in_flight:
            return []
        kind: Kind = "lease" if ours.bits else "work"
        there = [p for p in self._serving_step() if p in self.reports]
        return [(kind, peer) for peer in there if self.reports[peer].in_flight]

    def _not_in_the_step(self, now: float) -> list[PeerId]:
        """Return the replicas of the roll that do not report, are behind, or are absent for us."""
        laggards, there = self._laggards(), self._serving_step()
        behind = sorted(laggards) if self._complete_since is not None else []
        ahead = {r.peer for r in self._view.serving(self._place.stage) if r.version > self.step}
        absent = self._quorum.absent(self._quorum.roll.difference(laggards, there, ahead), now)
        return [*self._silent(there), *behind, *absent]

    def _awaited_of(self, led_by: PeerId, *, leases: bool) -> list[Wait]:
        """Return what we miss of the leader: one that withholds what all need is reported, too,
        even if it does not come to the step itself, or others do not."""
        at_step, behind = self._serving_step(), self._laggards()
        silent = self._silent(at_step)
        if led_by not in behind.union(at_step) or set(silent) - {led_by}:
            return []
        if silent:
            return [("behind" if behind else "report", led_by)]
        reports = [self.reports[p] for p in at_step if p in self.reports]
        idle = leases and not any(report.in_flight for report in reports)
        if idle or (self.whole and self._returned()):
            return [("behind" if behind else "plan", led_by)]
        return self._lessees() if leases and not behind else []

    def _is_complete(self, members: list[PeerId], now: float) -> Answer:
        """Whether the members' ledgers are the whole step, and no straggler is to be waited for."""
        count = self._count(members)
        few = no(f"{count} of {self._place.per_step} microbatches are counted")
        whole = self._returned() if count == self._place.per_step else few
        if not whole:
            self._complete_since = None
            return whole
        if self._complete_since is None:
            self._complete_since = now
        laggards = self._laggards()
        coming = self._quorum.coming(self._held(), members, now)
        if coming and now < self._complete_since + HEARD_S:
            return no(f"{_names(coming)} may take the stage, too, as the run begins")
        # a replica sees sooner that it has been left behind
        if not laggards or now >= self._complete_since + LOST_S:
            return YES
        return no(f"{_names(laggards)} still applies the step before")

    def _laggards(self) -> set[PeerId]:
        stage, roll = self._view.serving(self._place.stage), self._quorum.roll
        behind = {r.peer for r in stage if r.version == self.step - 1}
        return behind & roll if roll else behind

    def _may_close(self, members: Collection[PeerId], now: float) -> Answer:
        """Whether we have a quorum for closing the step with these members alone."""
        missing = self._quorum.roll - set(members) - self._laggards()
        answer = self._quorum.holds(now) and self._quorum.may_go_on_without(missing, now)
        self.refused = "" if answer else answer.reason
        return answer

    def _before(self) -> Commit | None:
        """Return the commit of the step before, if we have it."""
        return self._elector.commit(self._place.stage, self._place.era, self.step - 1)

    def _left_out(self, decree: Decree) -> frozenset[PeerId]:
        """Return those of the roll that are at our step and no members of a decree: electors do
        not vote for it."""
        return self._quorum.roll.intersection(self._serving_step()).difference(decree.members)

    # --- plan and decree -------------------------------------------------------------------

    @property
    def proposes(self) -> bool:
        """Whether we wait for the votes of electors."""
        return self.proposer.state is State.PROPOSING

    @property
    def _proposing(self) -> bool:
        """Whether the electors have a decree of ours: it is final, as far as we are concerned."""
        return self.proposer.state in (State.PROPOSING, State.CLOSED)

    def _act(self, now: float) -> list[Effect]:
        if self._member.knows_commit:
            return []
        if (commit := self.proposer.commit()) is not None:
            return self._close(commit, now)
        if self._plan is not None and self.proposer.state is State.IDLE:
            self._void("leader changed")
        if not self.leading:
            return []
        effects = self._admit(now)
        if self._proposing:
            self.may_plan = no(f"waiting for the votes of {_names(self.proposer.missing())}")
            return effects
        if self.proposer.state is State.BOUND and self.proposer.decree is not None:
            words = f"step {self.step}: completing attempt {self.proposer.decree.attempt}"
            said = Explain("round", f"{words}, for which electors have voted")
            return [*effects, said, *self.proposer.propose(self.proposer.decree, now)]
        here = self._member.received + len(self._answers)
        if self._plan is not None and self._obstruction.gives_up(here, now):
            words = f"step {self.step}: nothing came any more; planning it anew"
            effects.append(Explain("round", words, "warning"))
            self._void("nothing came")
        if self._plan is not None:
            return [*effects, *self._try_decide(self._plan, now)]
        members = self._at_step()
        self.may_plan = self._may_plan(members, now)
        if not (self.may_plan or self._left_behind()):
            return effects
        if self.proposer.state is State.IDLE:
            ours = self.reports.get(self._place.me)
            effects += self.proposer.ask(now, 0 if ours is None else ours.said.promised)
        if self.proposer.state is not State.FREE:
            names = _names(self.proposer.missing())
            self.may_plan = no(f"waiting for what {names} may have voted for")
            return effects
        return [*effects, *(self._make_plan(members, now) if self.may_plan else ())]

    def _may_plan(self, members: list[PeerId], now: float) -> Answer:
        """Whether all is there that a plan takes."""
        if not members:
            silent = _names(self._silent(self._serving_step()))
            return no(f"{silent} has not reported its ledger" if silent else "nobody serves it yet")
        if now < self.proposer.not_before:
            return no("another leader has the step")
        return self._is_complete(members, now) and self._may_close(members, now)

    def _make_plan(self, members: list[PeerId], now: float) -> list[Effect]:
        stage = self._view.stages[self._place.stage]
        arriving = {r.peer for r in stage if not r.serving and r.version <= self.step}
        arriving |= {peer for peer in self._serving_step() if peer not in members}
        observers = self.admissions.observers(arriving, members, now)
        lines = {r.peer: (r.uplink_bytes_per_s, r.downlink_bytes_per_s) for r in stage}
        owns = owning([lines.get(peer, (0.0, 0.0)) for peer in members])
        self._plan = Plan(
            stage=self._place.stage,
            step=self.step,
            attempt=self.proposer.attempt,
            members=split(self.reports, members, self._place.per_step),
            bounds=segmented(shard_bounds(self._size, owns)),
            observers=observers,
            state=most_common(
                [self.reports[peer].said.state for peer in members], self._member.state
            ),
            electors=self._electors(members),
            amended=self._amendments.due(self.step),
            promises=self.proposer.promises,
        )
        self._answers = {}
        self._obstruction.lead(self._member.received, now)
        return [Send(peer, self._plan) for peer in [*members, *observers]]

    def _electors(self, members: list[PeerId]) -> list[PeerId]:
        """Return the electors of a plan: every member is to know all of them."""
        known = set.intersection(*(set(self.reports[peer].said.knows) for peer in members))
        return self._quorum.choose(members, known, self._view)

    def ready(self, sender: PeerId, message: Ready, now: float) -> list[Effect]:
        """Take a member's Ready; propose the decree when all agree."""
        plan = self._plan
        if plan is None or message.step != self.step or message.attempt != plan.attempt:
            return []
        if self._proposing or all(m.peer != sender for m in plan.members):
            return []
        if sender in self._answers:
            return []
        said = Statement(plan.stage, self._place.era, plan.step, plan.attempt, message.digest)
        if not self._elector.verify(sender, READY, encode_statement(said), message.signature):
            return [Penalise(sender, "ready-not-signed", 20)]
        self._answers[sender] = message
        return self._act(now)

    def _try_decide(self, plan: Plan, now: float) -> list[Effect]:
        """Propose the decree once every member is Ready with the same digest."""
        ready = self._member.ready
        if len(self._answers) < len(plan.members) or not ready:
            return []
        members = tuple(member.peer for member in plan.members)
        decree = Decree(plan.attempt, ready, members, tuple(plan.electors), 0.0)
        if {message.digest for message in self._answers.values()} != {agreed(decree)}:
            return self._plan_anew(now)
        if back := self._left_out(decree):
            self._void("member came back")
            words = f"step {self.step}: {_names(back)} came back; planning it anew"
            return [Explain("round", words, members=tuple(sorted(back))), *self._act(now)]
        if not self._may_close(members, now):
            return []
        said = [(self._answers[m.peer], count_of(m.counted)) for m in plan.members]
        mine = members.index(self._place.me) if self._place.me in members else None
        vouched = vouched_sum([(message.loss_sum, count) for message, count in said], mine)
        loss_sum = min(max(vouched, -limits.MAX_NUMBER), limits.MAX_NUMBER)
        signed = tuple(message.signature for message, _ in said)
        return [*self.proposer.propose(replace(decree, loss_sum=loss_sum, ready=signed), now)]

    def _plan_anew(self, now: float) -> list[Effect]:
        """Members hold different gradients: plan anew, a few times, or leave the attempt to its
        end."""
        if self._times_apart >= MOST_APART:
            return []
        self._times_apart += 1
        self._void("gradients differ")
        words = f"step {self.step}: members hold different gradients; planning it anew"
        return [Explain("round", words, "error"), *self._act(now)]

    def _apart(self) -> set[PeerId]:
        """Return the members whose digest differs from the most common one, of two members from
        ours, in an attempt that is not planned anew because of that."""
        if self._plan is None or len(self._answers) < len(self._plan.members):
            return set()
        digests = Counter(said.digest for said in self._answers.values())
        ours = self._answers.get(self._place.me)
        usual = max(digests, key=lambda d: (digests[d], ours is not None and d == ours.digest, d))
        return {peer for peer, said in self._answers.items() if said.digest != usual}

    def vote(self, sender: PeerId, message: Vote, now: float) -> list[Effect]:
        """Take an elector's answer; say the commit once a majority has voted."""
        self.proposer.vote(sender, message, now)
        return self._act(now)

    def _close(self, commit: Commit, now: float) -> list[Effect]:
        """Tell all who apply the commit: ourselves too, members and observers. The electors of the
        next step get it with what its leader says."""
        observers = self.admissions.observing(now) if self._plan is None else self._plan.observers
        told = dict.fromkeys([self._place.me, *commit.decree.members, *observers])
        return [Send(peer, commit) for peer in told]

    # --- newcomers -------------------------------------------------------------------------

    def _held(self) -> set[PeerId]:
        """Return all holders of our stage, including fetching ones."""
        return {replica.peer for replica in self._view.stages[self._place.stage]}

    def _admit(self, now: float) -> list[Effect]:
        """Admit newcomers between plans, while the version is stable and donors can snapshot it.
        As for a plan, wait for replicas that are still applying: more donors are better; and until
        we can say the version's digest and who has made it."""
        stage, effects, state = self._place.stage, list[Effect](), self._member.state
        serving = self._serving_step()
        commit = self._before()
        if self._plan is not None or self._laggards() or not state or not serving or commit is None:
            return []
        for joiner in self.admissions.admit(serving, self._held(), now):
            admit = Admit(
                stage,
                self.step,
                joiner,
                sorted(serving, key=lambda p: rank("donor", joiner, p))[:DONORS],
                commit,
                state,
            )
            told = dict.fromkeys([*serving, *self.admissions.observing(now), joiner])
            effects += [Send(peer, admit) for peer in told]
            words = f"{short(joiner)} joins stage {stage} at version {self.step}"
            effects.append(Explain("transfer", words, members=(joiner,)))
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Act on deadlines that have passed; call it every ``LOOK_S``. A new view is a call."""
        if self._member.knows_commit:
            return []
        return [*self.proposer.tick(now), *self._act(now)]


def _names(peers: Iterable[PeerId]) -> str:
    return ", ".join(map(short, sorted(peers)))
