"""A replica's part in the round that closes a step: contribute, reduce, get ready, apply.

    waiting -> draining -> contributing -> exchanging -> ready -> applying

``waiting``: no plan yet. ``draining``: the worker still has a task that adds to the gradient.
``observing``: the plan lists us as a joining peer, we only collect and apply what is broadcast.
A plan with a higher attempt starts over from ``draining`` at any point before ``applying``; the
promise not to go back to a lower attempt is what keeps one lineage (I5). Two-phase: a member that
has said Ready can still be told to start over, and nothing is applied before Commit, so a death in
the middle costs one attempt and no state.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from protocol.effects import Effect, Explain, Penalise, Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, short
from protocol.pipeline.effects import (
    ApplyLocalTask,
    ApplyTask,
    Compute,
    ContributeTask,
    Fault,
    Keep,
    Outcome,
    PayloadKey,
    ReduceTask,
    SendPayload,
    SubtractTask,
)
from protocol.pipeline.ledger import from_bitmap
from protocol.pipeline.pipeline import Place
from protocol.rounds.plans import active_shards, blame_impostor, owner, plan_digest, reduced_key
from protocol.rounds.shards import check_bounds
from protocol.wire.messages import Plan, Ready, Reduced, Shard

RoundEffect = Effect | Compute | SendPayload | Keep | Fault
MAX_EARLY = 4
"""Contributions (and broadcasts) kept of one sender at a time: it has one per attempt, and is ahead
of the plan we follow by the width of a lane, so few are ever needed."""


REFUSED = bytes(32)
"""In place of a digest: the member cannot get ready, for it got what is no tensor."""


class Progress(enum.Enum):
    """Where the member stands in the round."""

    WAITING = "waiting"
    DRAINING = "draining"
    CONTRIBUTING = "contributing"
    EXCHANGING = "exchanging"
    READY = "ready"
    OBSERVING = "observing"
    APPLYING = "applying"


@dataclass(frozen=True, slots=True)
class _Broadcast:
    """A reduced shard as one sender announced it."""

    shard: int
    digest: bytes
    sq_norm: float


class RoundMember:
    """See the module's docstring. Methods return effects.

    Args:
        place: where this replica stands.
        size: elements of the stage's flat gradient.
        ledger: returns the ids of the current step in the worker's accumulator.
        accumulating: whether the worker has a task that will change the accumulator.
        drop: called with an id whose gradient is being subtracted; returns effects.
        loss_sum: summed token losses of the given ids (0 except at the last stage).
        loaded: whether the worker holds the state of the current version.
        state: hash of that state, empty where not known.
        vow: step and attempt that an earlier seat of ours has promised. What it sent for that
            attempt may still arrive, and must not be taken for ours.
    """

    def __init__(
        self,
        place: Place,
        size: int,
        step: int,
        *,
        ledger: Callable[[], set[int]],
        accumulating: Callable[[], bool],
        drop: Callable[[int], list[RoundEffect]],
        loss_sum: Callable[[frozenset[int]], float],
        loaded: Callable[[], bool],
        state: Callable[[], bytes] = bytes,
        vow: tuple[int, int] = (0, 0),
    ) -> None:
        self._place, self._size = place, size
        self._ledger, self._accumulating = ledger, accumulating
        self._drop, self._loss_sum, self._loaded = drop, loss_sum, loaded
        self._state, self._vow = state, vow
        self._reset(step)

    def _reset(self, step: int) -> None:
        self.step = step
        self.promised = self._vow[1] if step == self._vow[0] else 0
        self.progress = Progress.WAITING
        self._leader = PeerId("")
        self._plan: Plan | None = None
        self._counted: frozenset[int] = frozenset()
        self._dropped: frozenset[int] = frozenset()
        self._parts: set[tuple[int, int, PeerId]] = set()
        self._reducing = False
        self._broadcasts: dict[tuple[int, PeerId], _Broadcast] = {}
        """By attempt and sender: whose word counts for a shard is known with the plan only."""
        self._digest = b""
        self._commit: tuple[int, bytes] | None = None

    def start_step(self, step: int) -> None:
        """Begin the round of a new step."""
        self._reset(step)

    def forget(self, peer: PeerId) -> None:
        """A peer is lost: what it sent for attempts not begun is not its next process's word."""
        now = self.promised
        self._parts = {p for p in self._parts if p[2] != peer or p[0] == now}
        early = [key for key in self._broadcasts if key[1] == peer and key[0] != now]
        for key in early:
            del self._broadcasts[key]

    @property
    def vow(self) -> tuple[int, int]:
        """What a later seat of ours has to keep: the step and the highest attempt promised."""
        return max((self.step, self.promised), self._vow)

    @property
    def knows_commit(self) -> bool:
        """Whether this step's commit has come."""
        return self._commit is not None

    @property
    def applied(self) -> tuple[int, bytes]:
        """Attempt and digest of the commit that is being applied."""
        return self._commit or (0, b"")

    @property
    def counted(self) -> int:
        """Microbatches the current plan counts for us."""
        return len(self._counted)

    @property
    def ready(self) -> bytes:
        """Digest of the promised attempt if we are Ready, else empty."""
        return self._digest if self.progress is Progress.READY else b""

    @property
    def plan_followed(self) -> Plan | None:
        """The plan of the promised attempt."""
        return self._plan

    # --- the plan --------------------------------------------------------------------------

    def plan(self, sender: PeerId, plan: Plan) -> list[RoundEffect]:
        """Take a leader's plan; only a higher attempt than any before is followed, and where the
        step's commit has come, only its own."""
        if plan.step != self.step or self.progress is Progress.APPLYING:
            return []
        decided = plan.attempt if self._commit is None else self._commit[0]
        if plan.attempt <= self.promised or plan.attempt != decided:
            return []  # the step has its commit: another attempt would be a second one
        mine = next((m for m in plan.members if m.peer == self._place.me), None)
        if not check_bounds(plan.bounds, len(plan.members), self._size):
            return [Penalise(sender, "plan-with-wrong-bounds", 20)]
        if plan.state and self._state() not in (b"", plan.state):
            words = f"our state of version {self.step} differs from our siblings'"
            return [Fault("behind", words)]
        if mine is None:
            return self._observe(sender, plan)
        try:
            counted = from_bitmap(mine.counted, plan.step, self._place.per_step)
            dropped = from_bitmap(mine.dropped, plan.step, self._place.per_step)
        except RemoteProtocolError as error:
            return [Penalise(sender, error.reason, error.penalty)]
        self.promised, self._plan, self._leader = plan.attempt, plan, sender
        self._counted, self._dropped = counted, dropped
        self._reducing, self._digest = False, b""
        self.progress = Progress.DRAINING
        return [*self._expose(), *self.advance()]

    def _observe(self, leader: PeerId, plan: Plan) -> list[RoundEffect]:
        if self._place.me not in plan.observers:
            return []
        self.promised, self._plan, self._leader = plan.attempt, plan, leader
        self._counted, self._digest = frozenset(), b""
        self.progress = Progress.OBSERVING
        return [*self._expose(), *self._try_ready()]

    def _expose(self) -> list[RoundEffect]:
        """The plan says who owns which shard: forget older attempts and what impostors sent."""
        plan = self._require_plan()
        self._parts = {part for part in self._parts if part[0] >= plan.attempt}
        effects: list[RoundEffect] = []
        for (attempt, sender), broadcast in list(self._broadcasts.items()):
            impostor = attempt == plan.attempt and owner(plan, broadcast.shard) != sender
            if attempt < plan.attempt or impostor:
                del self._broadcasts[attempt, sender]
            if impostor:
                effects.append(blame_impostor(sender))
        return effects

    def advance(self) -> list[RoundEffect]:
        """Go on if the accumulator now holds exactly what the plan counts for us."""
        if self.progress is not Progress.DRAINING or self._accumulating():
            return []
        ledger = self._ledger()
        extra = ledger - self._counted
        if not self._counted <= ledger or not extra <= self._dropped:
            return []  # the plan is out of date; our next report makes the leader plan anew
        effects: list[RoundEffect] = []
        for microbatch in sorted(extra):  # the worker is first in, first out: no need to wait
            effects.append(Compute(SubtractTask(self.step, microbatch)))
            effects += self._drop(microbatch)
        return [*effects, *self._contribute()]

    def _contribute(self) -> list[RoundEffect]:
        plan = self._require_plan()
        if len(plan.members) == 1 and not plan.observers:
            return self._become_ready(plan_digest(self._leader, plan, [], []))
        self.progress = Progress.CONTRIBUTING
        return [Compute(ContributeTask(plan.step, plan.attempt, tuple(plan.bounds)))]

    # --- exchange --------------------------------------------------------------------------

    def shard(self, sender: PeerId, message: Shard) -> list[RoundEffect]:
        """Take a member's contribution to the shard we own (it may overtake the plan)."""
        entry = (message.attempt, message.shard, sender)
        if message.step != self.step or message.attempt < self.promised or entry in self._parts:
            return []
        if sum(part[2] == sender for part in self._parts) >= MAX_EARLY:
            return [Penalise(sender, "too-many-shards")]
        self._parts.add(entry)
        key = PayloadKey(message.step, "shard", message.shard, message.attempt, sender)
        return [Keep((key,)), *self._exchange()]

    def reduced(self, sender: PeerId, message: Reduced, digest: bytes) -> list[RoundEffect]:
        """Take an owner's broadcast; it has one per attempt, and the first one stands."""
        entry = (message.attempt, sender)
        if message.step != self.step or message.attempt < self.promised:
            return []
        if entry in self._broadcasts:
            return []
        plan = self._plan
        if plan and plan.attempt == message.attempt and owner(plan, message.shard) != sender:
            return [blame_impostor(sender)]
        if sum(known == sender for _, known in self._broadcasts) >= MAX_EARLY:
            return [Penalise(sender, "too-many-attempts")]
        self._broadcasts[entry] = _Broadcast(message.shard, digest, message.sq_norm)
        return [Keep((reduced_key(sender, message),)), *self._exchange()]

    def _exchange(self) -> list[RoundEffect]:
        """Reduce our shard once its parts are here; get ready once every shard is."""
        if self.progress is Progress.OBSERVING:
            return self._try_ready()
        if self.progress is not Progress.EXCHANGING:
            return []
        return [*self._try_reduce(), *self._try_ready()]

    def _try_reduce(self) -> list[RoundEffect]:
        plan = self._require_plan()
        mine = next(i for i, m in enumerate(plan.members) if m.peer == self._place.me)
        size = plan.bounds[mine + 1] - plan.bounds[mine]
        contributors = [PeerId(m.peer) for m in plan.members]
        have = all((plan.attempt, mine, peer) in self._parts for peer in contributors)
        if self._reducing or not have or size == 0:
            return []
        self._reducing = True
        keys = tuple(
            PayloadKey(plan.step, "shard", mine, plan.attempt, peer) for peer in contributors
        )
        return [Compute(ReduceTask(plan.step, plan.attempt, mine, keys, size))]

    def _try_ready(self) -> list[RoundEffect]:
        plan = self._require_plan()
        active = active_shards(plan)
        known = [self._broadcasts.get((plan.attempt, PeerId(plan.members[i].peer))) for i in active]
        complete = [broadcast for broadcast in known if broadcast is not None]
        if len(complete) < len(active):
            return []
        digests, norms = [b.digest for b in complete], [b.sq_norm for b in complete]
        return self._become_ready(plan_digest(self._leader, plan, digests, norms))

    def _become_ready(self, digest: bytes) -> list[RoundEffect]:
        plan = self._require_plan()
        self._digest = digest
        if self.progress is Progress.OBSERVING:
            return self.try_apply()
        self.progress = Progress.READY
        loss_sum = self._loss_sum(self._counted)
        ready = Ready(plan.stage, plan.step, plan.attempt, digest, loss_sum)
        return [Send(self._leader, ready), *self.try_apply()]

    # --- commit ----------------------------------------------------------------------------

    def committed(self, attempt: int, digest: bytes) -> list[RoundEffect]:
        """Learn that an attempt is committed (from its leader, or from a sibling that has applied
        it); apply if we hold exactly what it commits."""
        if self.progress is Progress.APPLYING or attempt < self.promised:
            return []  # having promised a later attempt, we must not apply this one
        self._commit = (attempt, digest)
        return self.try_apply()

    def try_apply(self) -> list[RoundEffect]:
        """Apply if the commit and all that it covers are here and the state is loaded."""
        plan = self._plan
        if self._commit is None or plan is None or not self._digest or not self._loaded():
            return []
        attempt, digest = self._commit
        if attempt != plan.attempt or self.progress is Progress.APPLYING:
            return []
        if digest != self._digest:
            words = f"step {self.step} was committed with other gradients than the ones we hold"
            return [Fault("behind", words)]
        self.progress = Progress.APPLYING
        if len(plan.members) == 1 and not plan.observers:
            return [Compute(ApplyLocalTask(plan.step))]
        return [Compute(self._apply_task(plan))]

    def _apply_task(self, plan: Plan) -> ApplyTask:
        keys: list[PayloadKey | None] = [None] * len(plan.members)
        norms = [0.0] * len(plan.members)
        for i in active_shards(plan):
            sender = PeerId(plan.members[i].peer)
            keys[i] = PayloadKey(plan.step, "reduced", i, plan.attempt, sender)
            norms[i] = self._broadcasts[plan.attempt, sender].sq_norm
        return ApplyTask(plan.step, plan.attempt, tuple(plan.bounds), tuple(keys), tuple(norms))

    # --- the worker's outcomes -------------------------------------------------------------

    def contributed(self, task: ContributeTask, outcome: Outcome) -> list[RoundEffect]:
        """Our shards are encoded: send each to its owner."""
        plan = self._plan
        if plan is None or plan.attempt != task.attempt or plan.step != task.step:
            return []
        if outcome.error:
            return [Fault("poisoned", f"the gradient of step {task.step} is {outcome.error}")]
        self.progress = Progress.EXCHANGING
        effects: list[RoundEffect] = []
        for i in active_shards(plan):
            owner = PeerId(plan.members[i].peer)
            key = PayloadKey(plan.step, "shard", i, plan.attempt, self._place.me)
            if owner == self._place.me:
                self._parts.add((plan.attempt, i, owner))
            else:
                message = Shard(plan.stage, plan.step, plan.attempt, i)
                effects.append(SendPayload(owner, message, (key,)))
        return [*effects, *self._exchange()]

    def was_reduced(self, task: ReduceTask, outcome: Outcome) -> list[RoundEffect]:
        """Our shard is summed: broadcast the bytes that everyone, we included, will apply."""
        plan = self._plan
        if plan is None or plan.attempt != task.attempt or plan.step != task.step:
            return []
        if outcome.error:
            return self._refuse(plan, task, outcome)
        message = Reduced(plan.stage, plan.step, plan.attempt, task.shard, outcome.sq_norm)
        me = self._place.me
        broadcast = _Broadcast(task.shard, outcome.digests[0], outcome.sq_norm)
        self._broadcasts[plan.attempt, me] = broadcast
        key = reduced_key(me, message)
        others = [m.peer for m in plan.members if m.peer != me]
        effects: list[RoundEffect] = [
            SendPayload(PeerId(peer), message, (key,)) for peer in [*others, *plan.observers]
        ]
        return [*effects, *self._exchange()]

    def _refuse(self, plan: Plan, task: ReduceTask, outcome: Outcome) -> list[RoundEffect]:
        """A contribution to our shard is no tensor: blame its sender, have the round made anew."""
        words = f"step {task.step}: a contribution to our shard is {outcome.error}"
        effects: list[RoundEffect] = [Explain("round", words, "error")]
        senders = [key.peer for key in task.parts if key.peer != self._place.me]
        if outcome.part is not None and outcome.part < len(senders):
            effects.append(Penalise(PeerId(senders[outcome.part]), "malformed-shard", 20))
        refusal = Ready(plan.stage, plan.step, plan.attempt, REFUSED, 0.0)
        return [*effects, Send(self._leader, refusal)]

    def why(self) -> str:
        """Say in words where the round stands."""
        attempt = f"attempt {self.promised} by {short(self._leader)}" if self._plan else "no plan"
        return f"step {self.step}: {self.progress.value}, {attempt}"

    def _require_plan(self) -> Plan:
        if self._plan is None:
            raise RuntimeError("a round without a plan cannot progress")
        return self._plan
