"""The pipeline machine of one replica: hops through its stage, idempotent under (step, id).

State: one ``Hop`` per microbatch of the current step, of the next step (arrived early, while our
round closes) and of the last step for as long as a neighbour stage may still ask for it. It orders
the worker's tasks (backward before forward, oldest first), answers Forward / Have / Backward, and
never touches tensors. It may not decide when a step closes: that is the round's.

With the one-step-delayed update the worker can compute the next step as well, at the parameters of
our version, while the current step, computed at those before, is still open: early hops run when
the current step has nothing to do.
"""

from __future__ import annotations

from collections.abc import Set

from protocol import limits
from protocol.effects import Effect, Penalise, Send
from protocol.ids import PeerId
from protocol.pipeline.backups import allowance
from protocol.pipeline.delivery import Deliveries
from protocol.pipeline.divergence import SPOILT_POINTS, Divergence
from protocol.pipeline.effects import (
    BackwardTask,
    Compute,
    DropStep,
    Fault,
    ForwardTask,
    GradientAccepted,
    Keep,
    LossTask,
    Obstructs,
    Outcome,
    PayloadKey,
    Rerouted,
    SendPayload,
)
from protocol.pipeline.hops import READY, Hop, Hops, Phase
from protocol.pipeline.ledger import from_bitmap
from protocol.pipeline.place import Place
from protocol.view import SwarmView
from protocol.wire.messages import Backward, Forward, Have, Plan, Receipt, Verdict

PipelineEffect = (
    Effect
    | Keep
    | SendPayload
    | DropStep
    | Compute
    | Fault
    | Rerouted
    | GradientAccepted
    | Obstructs
)
WORKER_DEPTH = 2
"""Tasks given to the worker at once: one runs, one waits, so that it never idles for a round trip
to the node; more would let a forward overtake a backward that has just arrived."""
STEPS_BEHIND = 2
"""Steps before the current one that are kept while, as far as we see, a neighbour has not closed
them: with the delayed update it may be two behind. A replica that has set a whole stage aside does
not see its progress, although its own stage continues."""
DEPTH_AHEAD = 1
"""The same for tasks of the next step: what closes the current one waits behind them."""


class Pipeline:
    """See the module's docstring. All methods return effects; ``now`` is monotonic seconds.

    Args:
        delayed: whether the run uses the one-step-delayed update.
    """

    def __init__(
        self,
        place: Place,
        step: int,
        *,
        delayed: bool = False,
    ) -> None:
        self._place = place
        self.step = step
        self._ahead = 1 if delayed else 0
        """Steps after the current one that the worker can compute."""
        self._hops = Hops(place.per_step)
        self._computing = 0
        self._deliveries = Deliveries(
            place.stage + 1, self._tokens_bytes, hops_left=place.stages - place.stage - 1
        )
        self._divergence = Divergence(place.stage)
        self._oldest_kept = step
        self._closed = False
        """The next version is being made: a task of this step given now would run at that one."""
        self.refused_from: int | None = None
        """The seat is leaving: nothing new is taken of this step and later ones."""

    # --- queries ---------------------------------------------------------------------------

    def done(self, step: int | None = None) -> Set[int]:
        """Return the ledger of a step, by default of the current one. It goes on changing."""
        return self._hops.done(self.step if step is None else step)

    def in_flight(self, step: int | None = None) -> Set[int]:
        """Return the microbatches of a step, by default the current one, that we hold and have not
        counted. They change as the step goes on."""
        return self._hops.in_flight(self.step if step is None else step)

    @property
    def ledger(self) -> bytes:
        """The ledger of the current step as a bitmap."""
        return self._hops.ledger(self.step)

    @property
    def revision(self) -> int:
        """Rises with every change of what is counted of the current step, or in flight."""
        return self._hops.revision(self.step)

    @property
    def newest(self) -> int:
        """The newest step of which anything has been begun, at least the current one."""
        begun = [phase for phase in Phase if phase is not Phase.QUEUED]
        steps = (step for step in self._hops.steps() if self._hops.count(step, *begun))
        return max(steps, default=self.step)

    def loss_sum(self, ids: frozenset[int]) -> float:
        """Return the summed token losses of ``ids``, in order of id."""
        return sum(hop.loss_sum for m in sorted(ids) if (hop := self._hops.get(m)))

    def givers(self) -> set[PeerId]:
        """Return who gave the tensors of what is counted of the current step."""
        done = [hop for hop in self._hops.of(self.step) if hop.phase is Phase.DONE]
        return {peer for hop in done for peer in (hop.source, hop.giver) if peer is not None}

    @property
    def accumulating(self) -> bool:
        """Whether the worker has a task that will add to the gradient of this step."""
        phases = (Phase.BACKWARD, Phase.FORWARD) if self._place.last else (Phase.BACKWARD,)
        return self._hops.count(self.step, *phases) > 0

    @property
    def queued(self) -> int:
        """Forwards that wait for the worker."""
        return sum(self._hops.count(step, Phase.QUEUED) for step in self._hops.steps())

    @property
    def waiting(self) -> int:
        """Microbatches that the worker could work on now."""
        return sum(self._hops.count(step, *READY) for step in self._ready_steps())

    def owed_for(self, now: float) -> dict[PeerId, float]:
        """Return by replica of the next stage for how many seconds it has brought nothing."""
        return self._deliveries.owed_for(now)

    def overdue(self, now: float) -> list[PeerId]:
        """Return who of the next stage brings nothing for longer than its siblings ever need."""
        return self._deliveries.overdue(now)

    @property
    def empty(self) -> bool:
        """Whether no microbatch is kept, of any step."""
        return not self._hops

    @property
    def rerouted(self) -> int:
        """Microbatches sent again so far."""
        return self._deliveries.rerouted

    # --- steps and neighbours --------------------------------------------------------------

    def start_step(self, step: int, now: float) -> list[PipelineEffect]:
        """Begin a step at its version; what arrived early becomes eligible.

        Hops of the closed step that we never finished were doubles: another replica counted them,
        so whoever waits for their gradient must ask it.
        """
        effects: list[PipelineEffect] = []
        for before in [before for before in self._hops.steps() if before < step]:
            for microbatch in list(self._hops.in_flight(before)):
                effects += self.drop(microbatch)
        self.step, self._closed = step, False
        return [*effects, *self._schedule(now)]

    def close(self) -> None:
        """Give the worker nothing more of this step: the next version is being made."""
        self._closed = True

    def update_view(self, view: SwarmView, now: float) -> list[PipelineEffect]:
        """Take a new view: re-route what lost replicas held, free what nobody can ask for."""
        place, self._divergence.view = self._place, view
        effects: list[PipelineEffect] = []
        if not place.last:
            # a replica one version behind still takes the step as an early one
            nexts = view.serving(place.stage + 1)
            rates = {r.peer: r.rate for r in nexts}
            self._deliveries.hops.avoid(r.peer for r in nexts if r.leaving)
            siblings = len(view.serving(place.stage))
            self._deliveries.backups.allowed = allowance(place.per_step, siblings)
            made = [view.committed(stage) for stage in range(place.stage + 1, place.stages)]
            effects += self._deliveries.update(rates, made[0], now, slowest=min(made))
        neighbours = [s for s in (place.stage - 1, place.stage + 1) if 0 <= s < place.stages]
        # a step is closed of what both neighbour stages made after they had closed the one before
        safe = min([self.step, *(view.committed(s) for s in neighbours)])
        safe = max(safe, self.step - STEPS_BEHIND)
        for step in range(self._oldest_kept, safe):
            self._hops.forget(step)
            self._deliveries.forget(step)
            effects.append(DropStep(step))
        self._oldest_kept = max(self._oldest_kept, safe)
        return effects

    def without_backups(self) -> None:
        """Send nothing twice on suspicion of being slow; to compare."""
        self._deliveries.backups.enabled = False

    def refuse_from(self, step: int) -> list[PipelineEffect]:
        """Take nothing new of ``step`` and later ones; give back what has not been begun."""
        self.refused_from = step
        effects: list[PipelineEffect] = []
        for hop in self._hops:
            if hop.step >= step and hop.phase is Phase.QUEUED and hop.upstreams:
                self._hops.pop(hop.microbatch)
                effects += self._tell_upstreams(hop, "busy")
        return effects

    def lease(self, ids: list[int], *, again: bool, now: float) -> list[PipelineEffect]:
        """Stage 0: queue leased microbatches of a step that we can compute.

        Args:
            ids: the leased microbatches.
            again: they were leased to another replica before.
            now: monotonic seconds.
        """
        for microbatch in ids:
            if self._computable(step := microbatch // self._place.per_step):
                self._hops.add(Hop(step, microbatch, Phase.QUEUED, again=again))
        return self._schedule(now)

    def planned(self, plan: Plan) -> list[PipelineEffect]:
        """Begin nothing that is not counted here: the plan counts the whole step.

        A microbatch that the worker is adding to the gradient now is finished and subtracted again.
        """
        place = self._place
        mine = next((member for member in plan.members if member.peer == place.me), None)
        if mine is None:
            return []
        counted = from_bitmap(mine.counted, plan.step, place.per_step)
        begun = (Phase.FORWARD if self._place.last else Phase.BACKWARD, Phase.DONE)
        here = self._hops.of(self.step)
        doubles = [h for h in here if h.microbatch not in counted and h.phase not in begun]
        return [effect for h in doubles for effect in self.drop(h.microbatch)]

    def drop(self, microbatch: int) -> list[Send]:
        """Another replica counts this microbatch and its gradient is out of our accumulator: from
        now on we do not know it, so that it can come back if the other replica dies."""
        hop = self._hops.pop(microbatch)
        self._deliveries.discard(microbatch)
        return [] if hop is None else self._tell_upstreams(hop, "absent")

    # --- messages --------------------------------------------------------------------------

    def forward(self, sender: PeerId, message: Forward, now: float) -> list[PipelineEffect]:
        """Take ``sender``'s boundary activation at ``now``; its payload is kept only on request."""
        hop = self._hops.get(message.microbatch)
        if hop is not None and hop.step == message.step:
            return [self._receipt(sender, message, "known"), *self._repeat(hop, sender, message)]
        if not self.step <= message.step <= self.step + 1 + self._ahead:
            return [self._receipt(sender, message, "stale")]
        if message.microbatch // self._place.per_step != message.step:
            return [Penalise(sender, "microbatch-of-another-step")]
        leaving = self.refused_from is not None and message.step >= self.refused_from
        if leaving or self._queued_until(message.step) >= self._place.max_queue:
            return [self._receipt(sender, message, "busy")]
        arrived = Hop(
            message.step,
            message.microbatch,
            Phase.QUEUED,
            upstreams={sender: message.attempt},
            giver=sender,
            source=sender,
            again=message.again,
            tokens_bytes=message.tokens_bytes,
        )
        self._hops.add(arrived)
        keys = (
            PayloadKey(message.step, "tokens", message.microbatch),
            PayloadKey(message.step, "input", message.microbatch),
        )
        accepted = self._receipt(sender, message, "accepted")
        return [Keep(keys), accepted, *self._schedule(now)]

    def have(self, sender: PeerId, message: Have) -> list[PipelineEffect]:
        """Answer whether we hold a microbatch; if so the asker becomes its return address."""
        hop = self._hops.get(message.microbatch)
        if hop is None or hop.step != message.step:
            return [self._receipt(sender, message, "absent")]
        return [self._receipt(sender, message, "known"), *self._repeat(hop, sender, message)]

    def receipt(self, sender: PeerId, message: Receipt, now: float) -> list[PipelineEffect]:
        """Take ``sender``'s receipt (``message``) for a boundary that we sent."""
        return list(self._deliveries.receipt(sender, message, now))

    def backward(self, sender: PeerId, message: Backward, now: float) -> list[PipelineEffect]:
        """Take ``sender``'s boundary gradient (``message``) at ``now``; a repetition is ignored."""
        if not self._deliveries.gradient(sender, message.step, message.microbatch, now):
            return [Penalise(sender, "gradient-not-asked-for", points=2)]
        hop = self._hops.get(message.microbatch)
        if hop is None or hop.phase is not Phase.SENT or not self._computable(hop.step):
            return []
        hop.giver = sender
        self._hops.move(hop, Phase.RETURNED)
        accepted = GradientAccepted(
            hop.step, hop.microbatch, self._deliveries.was_rerouted(hop.microbatch)
        )
        keep = Keep((PayloadKey(hop.step, "grad_in", hop.microbatch),))
        return [keep, accepted, *self._schedule(now)]

    # --- the worker's outcomes -------------------------------------------------------------

    def computed(
        self, task: ForwardTask | LossTask | BackwardTask, outcome: Outcome, now: float
    ) -> list[PipelineEffect]:
        """Take the ``outcome`` of a ``task`` at ``now``; its payload is already stored under the
        task's key."""
        self._computing -= 1
        hop = self._hops.get(task.microbatch)
        if hop is None or hop.step != task.step or not self._computable(task.step):
            return self._schedule(now)
        if hop.phase is not (Phase.BACKWARD if isinstance(task, BackwardTask) else Phase.FORWARD):
            return self._schedule(now)  # we gave it away meanwhile, and it has come again
        if outcome.error:
            return [*self._failed(hop, task, outcome, now), *self._schedule(now)]
        effects: list[PipelineEffect]
        if isinstance(task, ForwardTask):
            self._hops.move(hop, Phase.SENT)
            effects = list(
                self._deliveries.start(hop.step, hop.microbatch, again=hop.again, now=now)
            )
        else:
            hop.loss_sum = outcome.loss_sum
            self._hops.move(hop, Phase.DONE)
            self._divergence.finished()
            effects = self._return_gradient(hop)
        return [*effects, *self._schedule(now)]

    def tick(self, now: float) -> list[PipelineEffect]:
        """Act on deadlines that have passed."""
        return list(self._deliveries.tick(now))

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return self._deliveries.next_deadline()

    # --- inside ----------------------------------------------------------------------------

    def _computable(self, step: int) -> bool:
        """Whether the worker holds the parameters for a step, or will when it gets there."""
        return self.step <= step <= self.step + self._ahead

    def _ready_steps(self) -> range:
        """Return the steps of which the worker can be given something."""
        return range(self.step + 1 if self._closed else self.step, self.step + self._ahead + 1)

    def _next(self) -> Hop | None:
        """Return what the worker does next: by step, oldest backward, then oldest forward."""
        firsts = (self._hops.first_waiting(step) for step in self._ready_steps())
        return next((hop for hop in firsts if hop is not None), None)

    def _tokens_bytes(self, microbatch: int) -> int:
        hop = self._hops.get(microbatch)
        return hop.tokens_bytes if hop else 0

    def set_tokens_bytes(self, microbatch: int, size_bytes: int) -> None:
        """Stage 0: the worker has read the samples; they travel on with the activation."""
        if hop := self._hops.get(microbatch):
            hop.tokens_bytes = size_bytes

    def _repeat(self, hop: Hop, sender: PeerId, message: Forward | Have) -> list[PipelineEffect]:
        """A microbatch we know: only a return address is added (or renewed)."""
        if len(hop.upstreams) < limits.MAX_REPLICAS_IN_ROUND or sender in hop.upstreams:
            hop.upstreams[sender] = message.attempt
        return self._return_gradient(hop, sender) if hop.phase is Phase.DONE else []

    def _return_gradient(self, hop: Hop, *only: PeerId) -> list[PipelineEffect]:
        key = PayloadKey(hop.step, "grad_out", hop.microbatch)
        return [
            SendPayload(
                peer, Backward(self._place.stage - 1, hop.step, hop.microbatch, attempt), (key,)
            )
            for peer, attempt in hop.upstreams.items()
            if not only or peer in only
        ]

    def _queued_until(self, step: int) -> int:
        """Return the microbatches queued for steps up to ``step``; those of later ones can wait."""
        until = (known for known in self._hops.steps() if known <= step)
        return sum(self._hops.count(known, Phase.QUEUED) for known in until)

    def _tell_upstreams(self, hop: Hop, verdict: Verdict) -> list[Send]:
        stage, queued = self._place.stage, self.queued
        return [
            Send(peer, Receipt(stage, hop.step, hop.microbatch, attempt, verdict, queued))
            for peer, attempt in hop.upstreams.items()
        ]

    def _schedule(self, now: float) -> list[PipelineEffect]:
        """Keep the worker's queue filled."""
        effects: list[PipelineEffect] = []
        while self._computing < WORKER_DEPTH:
            hop = self._next()
            if hop is None or (hop.step > self.step and self._computing >= DEPTH_AHEAD):
                break
            self._computing += 1
            effects.append(Compute(self._task(hop)))
        return effects

    def _task(self, hop: Hop) -> ForwardTask | LossTask | BackwardTask:
        if hop.phase is Phase.RETURNED:
            self._hops.move(hop, Phase.BACKWARD)
            return BackwardTask(hop.step, hop.microbatch)
        self._hops.move(hop, Phase.FORWARD)
        if self._place.last:
            return LossTask(hop.step, hop.microbatch)
        return ForwardTask(hop.step, hop.microbatch)

    def _failed(
        self, hop: Hop, task: ForwardTask | LossTask | BackwardTask, outcome: Outcome, now: float
    ) -> list[PipelineEffect]:
        """A task went wrong: blame a bad tensor on who gave it and get it again."""
        blame, back = ("malformed-tensor", 20), isinstance(task, BackwardTask)
        ran_away = outcome.error in ("poisoned", "outlier")
        if ran_away and not self._divergence.found(hop, back=back):
            spoils = outcome.error == "poisoned"
            blame = ("tensor-spoils-pass" if spoils else "tensor-out-of-range", SPOILT_POINTS)
        elif outcome.error != "codec" or (back and outcome.part):  # our own input has gone bad
            words = f"microbatch {hop.microbatch}: the worker says {outcome.error}"
            if ran_away:
                return [Fault("diverged" if hop.giver is None else "poisoned", words)]
            return [Fault("internal", words)]
        blamed = [Penalise(hop.giver, *blame)] if hop.giver else []
        if back:
            self._hops.move(hop, Phase.SENT)
            by = hop.giver if outcome.error != "poisoned" else None
            cause = "corrupt gradient"
            return [*blamed, *self._deliveries.redo(hop.microbatch, cause, now, malformed_by=by)]
        self._hops.pop(hop.microbatch)
        if not hop.upstreams:
            return [Fault("internal", "the worker refuses our own samples")]
        return [*blamed, *self._tell_upstreams(hop, "busy")]

    def _receipt(self, to: PeerId, message: Forward | Have, verdict: Verdict) -> Send:
        of, queued = (message.step, message.microbatch, message.attempt), min(self.queued, 65535)
        return Send(to, Receipt(self._place.stage, *of, verdict, queued))
