"""A replica's part in the round that closes a step: contribute, reduce, get ready, apply.

    waiting -> settling -> contributing -> exchanging -> ready -> applying

A plan with a higher attempt starts over from ``settling`` at any point before ``applying``, and no
lower attempt is followed after it. Nothing is applied before the electors' decree, so a death in
the middle costs one attempt and no state. Nor does what is no tensor: of a contribution its owner
makes nothing, and sums are decoded before their members say Ready.
"""

import enum
from collections.abc import Callable, Collection, Sequence
from typing import Final

from protocol.audit.charges import Charge
from protocol.decree.decree import agreed
from protocol.effects import Explain, Penalise, Send
from protocol.ids import PeerId, short
from protocol.pipeline.effects import (
    ApplyTask,
    Compute,
    ContributeTask,
    DecodeTask,
    Fault,
    Keep,
    Outcome,
    PassTask,
    PayloadKey,
    ReduceTask,
    SendPayload,
    Task,
)
from protocol.pipeline.ledger import from_bitmap
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Came, Commitments
from protocol.rounds.effects import RoundEffect
from protocol.rounds.inbox import Inbox, TooMany
from protocol.rounds.obstruction import Wait
from protocol.rounds.plans import (
    blame_impostor,
    counts_all_once,
    in_sending_order,
    owner,
    plan_digest,
)
from protocol.rounds.shards import check_bounds, most_segments
from protocol.wire.messages import Plan, Ready, Reduced, Segment
from protocol.wire.parts import Decree


class Progress(enum.Enum):
    """``waiting``: for a plan.

    ``settling``: the worker still has a task that adds to the gradient. ``observing``: the plan
    lists us as a joining peer, we only collect and apply what is broadcast.
    """

    WAITING = "waiting"
    SETTLING = "settling"
    CONTRIBUTING = "contributing"
    EXCHANGING = "exchanging"
    READY = "ready"
    OBSERVING = "observing"
    APPLYING = "applying"


NOT_READY: Final = frozenset({Progress.SETTLING, Progress.CONTRIBUTING, Progress.EXCHANGING})
"""Where a member can still give an attempt up: nobody can have proposed its decree."""


class RoundMember:
    """See the module's docstring. Methods return effects.

    Args:
        place: where this replica stands.
        size: elements of the stage's flat gradient.
        step: the step that it begins with.
        accumulator: holds the gradients of the step that the worker has summed.
        loaded: whether the worker holds the state of the current version.
        promise: step and attempt that an earlier seat of this process has promised. Its messages
            for that attempt may still arrive, and must not be taken for ours.
        commitments: what members have committed to contribute.
        contributed: returns what there is to do, in a run with audits, once our contribution to a
            plan, of these microbatches, is encoded and no part of it is sent yet.
        closing: the same before the plan is applied that has this digest, with what came of it.
        rate: the learning rate of a step by the amendment of this digest; None: the manifest's.
        sign: signs a Ready; None: we have signed another one.
        roll: returns the members of the decree that made our version; nobody, before the first.
    """

    def __init__(
        self,
        place: Place,
        size: int,
        step: int,
        *,
        accumulator: Pipeline,
        loaded: bool,
        promise: tuple[int, int],
        commitments: Commitments,
        contributed: Callable[[Plan, frozenset[int]], Sequence[RoundEffect]],
        closing: Callable[[Plan, bytes, Came], Sequence[RoundEffect]],
        rate: Callable[[bytes, int], float | None],
        sign: Callable[[Ready], Ready | None],
        roll: Callable[[], frozenset[PeerId]],
    ) -> None:
        self._place, self._size = place, size
        self._commitments, self._say_contributed, self._closing = commitments, contributed, closing
        self._rate, self._sign, self._roll = rate, sign, roll
        self._accumulator, self.loaded, self._promise = accumulator, loaded, promise
        self._useless = set[PeerId]()
        """Members of whom we have said that a contribution counted for nothing."""
        self.start_step(step)

    def start_step(self, step: int, state: bytes = b"", *, hashing: bool = False) -> None:
        """Begin the round of a step.

        Args:
            step: its number.
            state: digest of its version, empty if not known.
            hashing: whether that will be said (``hashed``); until then we do not contribute.
        """
        self.step, self.state, self.hashing = step, state, hashing
        self.promised = self._promise[1] if step == self._promise[0] else 0
        self.progress = Progress.WAITING
        self._leader = PeerId("")
        self.plan_followed: Plan | None = None
        """Of the promised attempt."""
        self._other: Plan | None = None
        """The last plan of another state than ours."""
        self.counted: frozenset[int] = frozenset()
        """The microbatches that it counts for us."""
        self._inbox = Inbox(most_segments(self._size))
        self._digest = b""
        self.decree: Decree | None = None
        """That closes the step."""
        self.spoilers = set[PeerId]()
        """The members of which we have refused something in this step."""
        self._refused = -1
        """The attempt that we have refused last: nothing of it is waited for."""
        self._was_ready = False
        """Whether we were Ready for an attempt of this leader since a sibling was lost: it owes the
        commit."""
        self._short_of_memory = -1
        """The attempt for which contributing was tried once more."""

    def hashed(self, state: bytes) -> list[RoundEffect]:
        """The digest of our version is known: go on, if it is that of our siblings."""
        self.state, self.hashing = state, False
        if self.plan_followed is not None and self._differs(self.plan_followed):
            self._other = self.plan_followed
            self._give_up()
            return self._outnumbered()
        return [*self.advance(), *self.try_apply()]

    def _differs(self, plan: Plan) -> bool:
        """Whether a plan names another state than ours: it is not followed."""
        return bool(plan.state) and self.state not in (b"", plan.state)

    def _outnumbered(self) -> list[RoundEffect]:
        """Take our state for wrong once most of those that made our version take part in a plan of
        another one. By its leader's word alone all would drop theirs at once."""
        if (plan := self._other) is None:
            return []
        said = self._inbox.senders(plan.attempt)
        members, me = _members(plan), self._place.me
        roll = self._roll() or members
        if 2 * len(roll.intersection(members, said) - {me}) <= len(roll):
            return []
        self._other = None
        words = f"our state of version {self.step} differs from our siblings'"
        return [Fault("differs", words)]

    def _give_up(self) -> None:
        """Give the attempt up. The promise stays: only a later one is followed."""
        self.progress, self.plan_followed, self.counted = Progress.WAITING, None, frozenset()

    def state_loaded(self) -> list[RoundEffect]:
        """The worker holds the state of our version."""
        self.loaded = True
        return [*self.advance(), *self.try_apply()]

    def lost_one(self) -> None:
        """A sibling is lost: the leader has to plan anew, which takes its time."""
        self._was_ready = False

    @property
    def promise(self) -> tuple[int, int]:
        """The promise that a later seat of this process must keep: step and highest attempt."""
        return max((self.step, self.promised), self._promise)

    @property
    def knows_commit(self) -> bool:
        """Whether this step's commit has come."""
        return self.decree is not None

    @property
    def applying(self) -> bool:
        """Whether the worker makes the next version."""
        return self.progress is Progress.APPLYING

    @property
    def _busy(self) -> bool:
        """Whether our own worker has yet to do something before we contribute."""
        return self._accumulator.accumulating or self.hashing

    @property
    def received(self) -> int:
        """Contributions and broadcasts that are here, our own included."""
        return len(self._inbox)

    def senders(self) -> set[PeerId]:
        """Return the members whose contributions or sums of the promised attempt are here."""
        plan = self.plan_followed
        members = _members(plan) if plan else set[PeerId]()
        return self._inbox.senders(self.promised) & members - {self._place.me}

    @property
    def ready(self) -> bytes:
        """Digest of the promised attempt if we are Ready, else empty."""
        return self._digest if self.progress is Progress.READY else b""

    def awaited(self, gone: Collection[PeerId], led_by: PeerId | None) -> list[Wait]:
        """Return the peers that our part in the round waits for, and for what.

        In an attempt that comes to nothing, because we have refused it or one of its members is
        gone, nobody else is waited for: others may have given it up by now. Only the leader can
        plan it anew, once whoever spoilt it is gone, too.

        Args:
            gone: members of the plan that do not serve the stage for us any more.
            led_by: the leader of our step.
        """
        waits: list[Wait] = [("spoilt", peer) for peer in sorted(self.spoilers)]
        plan = self.plan_followed
        if plan is None or self.progress is Progress.APPLYING or self._refused == plan.attempt:
            return waits
        missing = self._awaited_in(plan)
        owed = self._was_ready or self.progress is Progress.READY
        if owed and self._leader != self._place.me:
            missing.append(("commit", self._leader))
        if any(member.peer in gone for member in plan.members):
            missing = [wait for wait in missing if wait[1] in gone]
            if led_by is not None and led_by != self._place.me:
                missing.append(("plan", led_by))
        return [*waits, *missing]

    def _awaited_in(self, plan: Plan) -> list[Wait]:
        """Return the peers that we wait for in an attempt."""
        me = self._place.me
        if self.progress is Progress.EXCHANGING:
            late = self._commitments.missing(plan)
            uncommitted: list[Wait] = [("contribution", peer) for peer in late if peer != me]
            return self._inbox.awaited(plan, me) or uncommitted
        if self._leader == me:
            return []
        if self.progress is Progress.SETTLING and not self._busy:
            return [("plan", self._leader)]  # one that does not fit what we have
        return []

    # --- the plan --------------------------------------------------------------------------

    def expelled(self, peer: PeerId) -> bool:
        """A member is expelled: give its attempt up unless we are Ready for it already, because it
        may then be decreed (I5). The promise stays: only a later attempt is followed. Return
        whether we have given one up."""
        plan = self.plan_followed
        if plan is None or self.decree is not None or self.progress not in NOT_READY:
            return False
        if all(member.peer != peer for member in plan.members):
            return False
        self._give_up()
        return True

    def plan(self, sender: PeerId, plan: Plan) -> list[RoundEffect]:
        """Take a leader's plan; only a higher attempt than any before is followed, and where the
        step's commit has come, only its own."""
        if plan.step != self.step or self.progress is Progress.APPLYING:
            return []
        decided = plan.attempt if self.decree is None else self.decree.attempt
        if plan.attempt <= self.promised or plan.attempt != decided:
            return []  # the step has its commit: another attempt would be a second one
        mine = next((m for m in plan.members if m.peer == self._place.me), None)
        if not check_bounds(plan.bounds, len(plan.members), self._size):
            return [Penalise(sender, "plan-with-wrong-bounds", 20)]
        if mine is not None and not counts_all_once(plan.members, self._place.per_step):
            return [Penalise(sender, "plan-that-miscounts", 20)]
        if self._differs(plan):
            self._other = plan
            return self._outnumbered()
        self._other = None
        if mine is None and self._place.me not in plan.observers:
            return []
        bits = b"" if mine is None else mine.counted
        self.counted = from_bitmap(bits, plan.step, self._place.per_step)
        self._was_ready &= sender == self._leader
        self.promised, self.plan_followed = plan.attempt, plan
        self._leader, self._digest = sender, b""
        self.progress = Progress.OBSERVING if mine is None else Progress.SETTLING
        impostors = sorted(self._inbox.follow(plan, self._place.me))  # it says who owns what
        return [*map(blame_impostor, impostors), *self.advance(), *self.exchange()]

    def advance(self) -> list[RoundEffect]:
        """Go on if the accumulator holds what the plan counts for us; the rest is taken out, for
        the plan counts it for others. A worker without the state of our version has nothing to
        contribute to it: a leader may still know our last seat when it names us."""
        if self.progress is not Progress.SETTLING or self._busy or not self.loaded:
            return []
        ledger = self._accumulator.done()
        if not self.counted <= ledger:
            return []  # the plan is out of date; our next report makes the leader plan again
        effects: list[RoundEffect] = []
        for microbatch in sorted(
            ledger - self.counted
        ):  # the worker is first in, first out: no need to wait
            effects.append(Compute(PassTask(self.step, microbatch, "less")))
            effects += self._accumulator.drop(microbatch)
        return [*effects, *self._contribute()]

    def _contribute(self) -> list[RoundEffect]:
        plan = self._require_plan()
        if len(plan.members) == 1 and not plan.observers:
            return self._become_ready(plan_digest(self._leader, plan, []))
        self.progress = Progress.CONTRIBUTING
        return [Compute(ContributeTask(plan.step, plan.attempt, tuple(plan.bounds)))]

    # --- exchange --------------------------------------------------------------------------

    def take(self, sender: PeerId, message: Segment | Reduced, digest: bytes) -> list[RoundEffect]:
        """Take a member's contribution to a segment that we own, or an owner's broadcast of its
        own; both may overtake the plan. ``digest`` names the payload."""
        if message.step != self.step or message.attempt < self.promised:
            return []
        plan = self.plan_followed if isinstance(message, Reduced) else None
        of_plan = plan and plan.attempt == message.attempt
        if plan and of_plan and owner(plan, message.segment) != sender:
            return [blame_impostor(sender)]
        try:
            key = self._inbox.take(sender, message, digest)
        except TooMany:
            return [Penalise(sender, "too-many-segments")]
        return [Keep((key,)), *self.exchange()] if key else []

    def exchange(self) -> list[RoundEffect]:
        """Reduce our segments as their parts come, decode the others' sums; get ready once every
        sum and commitment is here and sound."""
        if outnumbered := self._outnumbered():
            return outnumbered
        if self.progress is Progress.OBSERVING:
            return self._try_ready()
        if self.progress is not Progress.EXCHANGING:
            return []
        plan, me = self._require_plan(), self._place.me
        sums = self._inbox.reductions(plan)
        tasks: list[Task] = [*sums, *self._inbox.decodings(plan, me)]
        return [*map(Compute, tasks), *(self._try_ready() if self._inbox.all_sound() else [])]

    def _try_ready(self) -> list[RoundEffect]:
        plan = self._require_plan()
        broadcasts, beside = self._inbox.broadcasts(plan), self._commitments.fingerprint(plan)
        if broadcasts is None or beside is None:
            return []
        if false := self._commitments.false(plan, self._inbox.came(plan)):
            return self._refuse_unsigned(plan, false)
        return self._become_ready(plan_digest(self._leader, plan, broadcasts, beside))

    def _refuse_unsigned(self, plan: Plan, false: Sequence[PeerId]) -> list[RoundEffect]:
        """Members have contributed something else than they signed, or have signed something else
        than the plan asks for: blame and charge them, once."""
        if self._refused == plan.attempt or self.progress is Progress.OBSERVING:
            return []
        words = f"{short(false[0])} has contributed something else than it signed"
        effects = self._refuse(plan, words)
        for peer in false:
            effects += self._blame(peer, "contribution-not-signed", 20)
            if self._commitments.of(peer, plan.step, plan.attempt) is not None:
                effects.append(Charge(plan.stage, peer, plan.step, plan.attempt, "other"))
        return effects

    def _become_ready(self, digest: bytes) -> list[RoundEffect]:
        plan = self._require_plan()
        self._digest = digest
        if self.progress is Progress.OBSERVING:
            return self.try_apply()
        self.progress, self._was_ready = Progress.READY, True
        loss_sum = self._accumulator.loss_sum(self.counted)
        members = tuple(member.peer for member in plan.members)
        decree = Decree(plan.attempt, digest, members, tuple(plan.electors), 0.0)
        ready = self._sign(Ready(plan.stage, plan.step, plan.attempt, agreed(decree), loss_sum))
        said = [] if ready is None else [Send(self._leader, ready)]
        return [*said, *self.try_apply()]

    # --- commit ----------------------------------------------------------------------------

    def committed(self, decree: Decree) -> list[RoundEffect]:
        """The step is closed: apply what is decreed if we hold exactly that."""
        if self.progress is Progress.APPLYING:
            return []
        self.decree = decree
        return self.try_apply()

    @property
    def is_left_out(self) -> bool:
        """Whether the step is closed with something that a replica has not got any more, or never
        had: members get Ready before there is a commit. To an observer sums may still be on their
        way, which travel in another lane than the commit."""
        if self.decree is None or self.progress is Progress.APPLYING:
            return False
        if self.plan_followed is None or self.plan_followed.attempt != self.decree.attempt:
            return True
        return not self._digest and self.progress is not Progress.OBSERVING

    def try_apply(self) -> list[RoundEffect]:
        """Apply if the commit and all that it covers are here and the state is loaded."""
        plan, decree = self.plan_followed, self.decree
        if decree is None or plan is None or not self._digest or not self.loaded:
            return []
        if self.hashing or decree.attempt != plan.attempt or self.applying:
            return []
        if decree.digest != self._digest:
            words = f"step {self.step} was committed with other gradients than the ones we hold"
            return [Fault("behind", words)]
        self.progress = Progress.APPLYING
        self._accumulator.close()
        task = ApplyTask(plan.step, rate=self._rate(plan.amended, plan.step))
        if len(plan.members) > 1 or plan.observers:
            task = self._inbox.apply_task(plan, task.rate)
        closing = self._closing(plan, decree.digest, self._inbox.came(plan))
        return [*closing, Compute(task)]

    # --- the worker's outcomes -------------------------------------------------------------

    def computed(
        self, task: ContributeTask | ReduceTask | DecodeTask, outcome: Outcome
    ) -> list[RoundEffect]:
        """Take what a task of the round came to; of another attempt's than ours, nothing."""
        plan = self.plan_followed
        if plan is None or plan.attempt != task.attempt or plan.step != task.step:
            return []
        if isinstance(task, ContributeTask):
            return self._contributed(plan, task, outcome)
        if isinstance(task, ReduceTask):
            return self._reduced(plan, task, outcome)
        return self._decoded(plan, task, outcome)

    def _contributed(self, plan: Plan, task: ContributeTask, outcome: Outcome) -> list[RoundEffect]:
        """Our segments are encoded: send each to its owner."""
        if outcome.error:
            return self._not_contributed(task, outcome.error)
        self.progress = Progress.EXCHANGING
        effects: list[RoundEffect] = [*self._say_contributed(plan, self.counted)]
        me = self._place.me
        for i in in_sending_order(plan, me):
            to = owner(plan, i)
            if to is None or to == me:
                self._inbox.own(plan, i, me)
            else:
                key = PayloadKey(plan.step, "segment", i, plan.attempt, me)
                message = Segment(plan.stage, plan.step, plan.attempt, i)
                effects.append(SendPayload(to, message, (key,)))
        return [*effects, *self.exchange()]

    def _not_contributed(self, task: ContributeTask, error: str) -> list[RoundEffect]:
        """Only numbers that are none say that training went wrong; memory may be free again."""
        if error == "poisoned":
            return [Fault("poisoned", f"the gradient of step {task.step} is poisoned")]
        if error == "oom" and self._short_of_memory != task.attempt:
            self._short_of_memory = task.attempt
            return [Compute(task)]
        return [Fault("internal", f"contributing to step {task.step} failed: {error}")]

    def _reduced(self, plan: Plan, task: ReduceTask, outcome: Outcome) -> list[RoundEffect]:
        """One of our segments is summed: broadcast the bytes that everyone will apply."""
        if outcome.error:  # our own trouble: others can go on without us
            words = f"summing a shard of step {task.step} failed: {outcome.error}"
            return [Fault("internal", words)]
        if self._commitments.active and outcome.part is not None:
            # an audit of our sum could not tell who has changed what was signed
            return self._refuse_unsigned(plan, [PeerId(task.parts[outcome.part].peer)])
        norms = outcome.sq_norm, outcome.own_sq_norm
        message = Reduced(plan.stage, plan.step, plan.attempt, task.segment, *norms)
        me = self._place.me
        key = self._inbox.take(me, message, outcome.digests[0])
        if key is None:
            return []
        self._inbox.sound(task.segment)
        told = [*(m.peer for m in plan.members if m.peer != me), *plan.observers]
        effects: list[RoundEffect] = [SendPayload(peer, message, (key,)) for peer in told]
        useless = {PeerId(task.parts[place].peer) for place in outcome.parts}
        for peer in sorted(useless - self._useless):
            words = f"what {short(peer)} contributes is absurd or malformed: it counts for nothing"
            effects.append(Explain("round", f"step {plan.step}: {words}", "warning", (peer,)))
        self._useless = useless | (self._useless & _members(plan))
        return [*effects, *self.exchange()]

    def _decoded(self, plan: Plan, task: DecodeTask, outcome: Outcome) -> list[RoundEffect]:
        """The sum of another's segment is sound, or its owner is to blame."""
        if outcome.error == "codec":
            refusal = self._refuse(plan, f"the sum of segment {task.segment} is malformed")
            return [*refusal, *self._blame_owner(plan, task.segment)]
        if outcome.error:
            words = f"decoding a sum of step {task.step} failed: {outcome.error}"
            return [Fault("internal", words)]
        self._inbox.sound(task.segment)
        return self.exchange()

    def _refuse(self, plan: Plan, words: str) -> list[RoundEffect]:
        """Get Ready for no plan whose sums cannot be used: it comes to its end without us."""
        self._refused = plan.attempt
        return [Explain("round", f"step {plan.step}: {words}", "error")]

    def _blame(self, peer: PeerId, reason: str, points: int) -> list[RoundEffect]:
        """Blame a member for what it sent in this step, once."""
        if peer in self.spoilers:
            return []
        self.spoilers.add(peer)
        return [Penalise(peer, reason, points)]

    def _blame_owner(self, plan: Plan, segment: int) -> list[RoundEffect]:
        """Blame a segment's owner that broadcast an invalid sum or a false norm."""
        culprit = owner(plan, segment)
        if culprit is None or culprit == self._place.me:
            return []
        return self._blame(culprit, "malformed-sum", 50)

    def not_applied(self, outcome: Outcome) -> list[RoundEffect]:
        """The next version could not be made."""
        fault = Fault("internal", f"applying step {self.step} failed: {outcome.error}")
        if outcome.error != "codec" or outcome.part is None or self.plan_followed is None:
            return [fault]
        return [*self._blame_owner(self.plan_followed, outcome.part), fault]

    def why(self) -> str:
        """Say in words where the round stands that a plan has begun."""
        return f"{self.progress.value}, attempt {self.promised} by {short(self._leader)}"

    def _require_plan(self) -> Plan:
        if self.plan_followed is None:
            raise RuntimeError("a round without a plan cannot progress")
        return self.plan_followed


def _members(plan: Plan) -> set[PeerId]:
    return {member.peer for member in plan.members}
