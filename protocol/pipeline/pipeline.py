"""The pipeline machine of one replica: microbatches through its stage, idempotent under (step, id).

State: one ``MicrobatchState`` per microbatch of the current step, of the next step (arrived early,
while our round closes) and of the last step for as long as a neighbour stage may still ask for it.
It orders the worker's tasks (backward before forward, oldest first), answers Forward, Have and
Backward, and never touches tensors. It does not decide when a step closes: the round does.
"""

from collections.abc import Set

from protocol import limits
from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pace import ANSWER_S
from protocol.pipeline.delivery import Deliveries
from protocol.pipeline.divergence import SPOILT_POINTS, Divergence
from protocol.pipeline.effects import (
    BackwardTask,
    Compute,
    DropStep,
    Fault,
    ForwardTask,
    Keep,
    LossTask,
    Outcome,
    PayloadKey,
    PipelineEffect,
    SendPayload,
)
from protocol.pipeline.microbatches import READY, Microbatches, MicrobatchState, Phase, StepWork
from protocol.pipeline.newcomers import NOBODY, Bound
from protocol.pipeline.place import Place
from protocol.view import SwarmView
from protocol.wire.messages import Backward, Forward, Have, Receipt, Verdict

WORKER_DEPTH = 2
"""Tasks given to the worker at once: one runs, one waits, so that it never idles for a round trip
to the node; more would let a forward overtake a backward that has just arrived. A worker that runs
several at a time gets one more than it runs."""


class Pipeline:
    """See the module's docstring. All methods return effects; ``now`` is monotonic seconds.

    Args:
        place: where this replica stands.
        step: the step that it begins with.
        at_once: tasks that the worker runs at a time.
    """

    def __init__(self, place: Place, step: int, *, at_once: int = 1) -> None:
        self._place = place
        self.step = step
        self._more = at_once - 1
        self._microbatches = Microbatches(place.per_step)
        self._computing = 0
        self.deliveries = Deliveries(place.stage + 1)
        self._divergence = Divergence(place.stage)
        self._oldest_kept = step
        self._closed = False
        """The next version is being made: a task of this step given now would run at that one."""
        self.refused_from: int | None = None
        """The seat is leaving: nothing new is taken of this step and later ones."""

    # --- queries ---------------------------------------------------------------------------

    @property
    def work(self) -> StepWork:
        """The microbatches of the current step."""
        return self._microbatches.at(self.step)

    def done(self) -> Set[int]:
        """Return the ledger of the current step. It goes on changing."""
        return self.work.done

    def in_flight(self) -> Set[int]:
        """Return the microbatches of the current step that we hold and have not counted. They
        change as the step goes on."""
        return self.work.in_flight

    def loss_sum(self, ids: frozenset[int]) -> float:
        """Return the summed token losses of ``ids``, in order of id."""
        return sum(state.loss_sum for m in sorted(ids) if (state := self._microbatches.get(m)))

    def given(self) -> dict[tuple[int, PeerId], dict[int, bytes]]:
        """Return the digests of what was given to us of the microbatches counted in the current
        step, by the giver's stage and itself, and by microbatch."""
        found = dict[tuple[int, PeerId], dict[int, bytes]]()
        stage = self._place.stage
        for state in filter(None, map(self._microbatches.get, self.done())):
            if state.source is not None:
                found.setdefault((stage - 1, state.source), {})[state.microbatch] = state.came
            if state.giver is not None and state.came_back:
                found.setdefault((stage + 1, state.giver), {})[state.microbatch] = state.came_back
        return found

    @property
    def accumulating(self) -> bool:
        """Whether the worker has a task that will add to the gradient of this step."""
        phases = (Phase.BACKWARD, Phase.FORWARD) if self._place.last else (Phase.BACKWARD,)
        return self.work.count(*phases) > 0

    @property
    def idle(self) -> bool:
        """Whether the worker has nothing of ours."""
        return not self._computing

    @property
    def queued(self) -> int:
        """Forwards that wait for the worker."""
        return self._queued_until(self.step + 1)

    @property
    def waiting(self) -> int:
        """Microbatches that the worker could work on now."""
        return 0 if self._closed else self.work.count(*READY)

    @property
    def empty(self) -> bool:
        """Whether no microbatch is kept, of any step."""
        return not self._microbatches

    # --- steps and neighbours --------------------------------------------------------------

    def start_step(self, step: int, now: float) -> list[PipelineEffect]:
        """Begin a step at its version; what arrived early becomes eligible.

        Microbatches of the closed step that we never finished were doubles. Another replica counted
        them, so the replicas that wait for their gradients must ask that one.
        """
        effects: list[PipelineEffect] = []
        for before in [before for before in self._microbatches.steps() if before < step]:
            for microbatch in list(self._microbatches.at(before).in_flight):
                effects += self.drop(microbatch)
        self.step, self._closed = step, False
        return [*effects, *self._schedule(now)]

    def close(self) -> None:
        """Give the worker nothing more of this step: the next version is being made."""
        self._closed = True

    def update_view(
        self, view: SwarmView, now: float, bound: Bound = NOBODY
    ) -> list[PipelineEffect]:
        """Take a new view: re-route the work of lost replicas, free what no peer can ask for.

        Args:
            view: the live replicas.
            bound: what newcomers of the next stage may have.
        """
        place, self._divergence.view = self._place, view
        effects: list[PipelineEffect] = []
        if not place.last:
            # a replica one version behind still takes the step as an early one
            nexts = view.serving(place.stage + 1)
            rates = {r.peer: r.rate for r in nexts}
            hops = self.deliveries.next_hop
            hops.leaving = {r.peer for r in nexts if r.leaving}
            hops.relayed, hops.bound = view.relayed, bound
            made = [view.committed(stage) for stage in range(place.stage + 1, place.stages)]
            effects += self.deliveries.update(rates, made[0], now, slowest=min(made))
        neighbours = [s for s in (place.stage - 1, place.stage + 1) if 0 <= s < place.stages]
        # a step is closed of what both neighbour stages made after they had closed the one before;
        # a replica that has set a whole stage aside does not see that it goes on
        safe = min([self.step, *(view.committed(s) for s in neighbours)])
        safe = max(safe, self.step - 1)
        for step in range(self._oldest_kept, safe):
            self._microbatches.forget(step)
            self.deliveries.forget(step)
            effects.append(DropStep(step))
        self._oldest_kept = max(self._oldest_kept, safe)
        return effects

    def refuses(self, step: int) -> bool:
        """Whether nothing new is taken of a step."""
        return self.refused_from is not None and step >= self.refused_from

    def refuse_from(self, step: int) -> list[PipelineEffect]:
        """Take nothing new of ``step`` and later ones; give back what has not been begun."""
        self.refused_from = step
        effects: list[PipelineEffect] = []
        for state in self._microbatches:
            if state.step >= step and state.phase is Phase.QUEUED and state.upstreams:
                self._microbatches.pop(state.microbatch)
                effects += self._give_back(state)
        return effects

    def lease(self, ids: list[int], *, again: bool, now: float) -> list[PipelineEffect]:
        """Stage 0: queue leased microbatches of the current step.

        Args:
            ids: the leased microbatches.
            again: they were leased to another replica before.
        """
        for microbatch in ids:
            if (step := microbatch // self._place.per_step) == self.step:
                self._microbatches.add(MicrobatchState(step, microbatch, Phase.QUEUED, again=again))
        return self._schedule(now)

    def planned(self, counted: frozenset[int]) -> list[PipelineEffect]:
        """Begin nothing but what a plan has ``counted`` here: it counts the whole step.

        A microbatch that the worker is adding to the gradient now is finished and subtracted again.
        """
        begun = (Phase.FORWARD if self._place.last else Phase.BACKWARD, Phase.DONE)
        here = self._microbatches.of(self.step)
        doubles = [h for h in here if h.microbatch not in counted and h.phase not in begun]
        return [effect for h in doubles for effect in self.drop(h.microbatch)]

    def drop(self, microbatch: int) -> list[Send]:
        """Another replica counts this microbatch and its gradient is out of our accumulator: from
        now on we do not know it, so that it can come back if the other replica dies."""
        state = self._microbatches.pop(microbatch)
        self.deliveries.discard(microbatch)
        return [] if state is None else self._give_back(state)

    # --- messages --------------------------------------------------------------------------

    def forward(
        self, sender: PeerId, message: Forward, digest: bytes, now: float
    ) -> list[PipelineEffect]:
        """Take ``sender``'s boundary activation (``message``) at ``now``; its payload, of this
        ``digest``, is kept only on request."""
        state = self._microbatches.get(message.microbatch)
        if state is not None and state.step == message.step:
            return self._known(state, sender, message, now)
        if message.microbatch // self._place.per_step != message.step:
            return [Penalise(sender, "microbatch-of-another-step")]
        runs = self.step <= message.step <= self.step + 1 and not self.refuses(message.step)
        if not runs or self._queued_until(message.step) >= self._place.max_queue:
            return [self._receipt(sender, message, "busy")]
        arrived = MicrobatchState(
            message.step,
            message.microbatch,
            Phase.QUEUED,
            upstreams={sender},
            giver=sender,
            source=sender,
            came=digest,
            again=message.again,
        )
        self._microbatches.add(arrived)
        step, microbatch = message.step, message.microbatch
        keys = PayloadKey(step, "tokens", microbatch), PayloadKey(step, "input", microbatch)
        return [Keep(keys), *self._schedule(now)]

    def have(self, sender: PeerId, message: Have, now: float) -> list[PipelineEffect]:
        """Answer whether we hold a microbatch; if so the asker becomes its return address."""
        state = self._microbatches.get(message.microbatch)
        if state is None or state.step != message.step:
            return [self._receipt(sender, message, "absent")]
        return self._known(state, sender, message, now)

    def backward(
        self, sender: PeerId, message: Backward, digest: bytes, now: float
    ) -> list[PipelineEffect]:
        """Take ``sender``'s boundary gradient (``message``) of this ``digest`` at ``now``; a
        repetition is ignored."""
        if not self.deliveries.gradient(sender, message.step, message.microbatch, now):
            return []
        state = self._microbatches.get(message.microbatch)
        if state is None or state.phase is not Phase.SENT or state.step != self.step:
            return []
        state.giver, state.came_back = sender, digest
        self._microbatches.move(state, Phase.RETURNED)
        keep = Keep((PayloadKey(state.step, "grad_in", state.microbatch),))
        return [keep, *self._schedule(now)]

    # --- the worker's outcomes -------------------------------------------------------------

    def computed(
        self, task: ForwardTask | LossTask | BackwardTask, outcome: Outcome, now: float
    ) -> list[PipelineEffect]:
        """Take the ``outcome`` of a ``task`` at ``now``; its payload is already stored under the
        task's key."""
        self._computing -= 1
        state = self._microbatches.get(task.microbatch)
        if state is None or not state.step == task.step == self.step:
            return self._schedule(now)
        if state.phase is not (Phase.BACKWARD if isinstance(task, BackwardTask) else Phase.FORWARD):
            return self._schedule(now)  # we gave it away meanwhile, and it has come again
        if outcome.error:
            return [*self._failed(state, task, outcome, now), *self._schedule(now)]
        effects: list[PipelineEffect]
        if isinstance(task, ForwardTask):
            self._microbatches.move(state, Phase.SENT)
            of = state.step, state.microbatch
            effects = self.deliveries.start(*of, again=state.again, now=now)
        else:
            state.loss_sum = outcome.loss_sum
            self._microbatches.move(state, Phase.DONE)
            self._divergence.finished()
            effects = self._return_gradient(state, now)
        return [*effects, *self._schedule(now)]

    # --- inside ----------------------------------------------------------------------------

    def _known(
        self, state: MicrobatchState, sender: PeerId, message: Forward | Have, now: float
    ) -> list[PipelineEffect]:
        """A microbatch we know: only a return address is added."""
        if len(state.upstreams) < limits.MAX_REPLICAS_IN_ROUND:
            state.upstreams.add(sender)
        done = state.phase is Phase.DONE
        gradient = self._return_gradient(state, now, sender) if done else []
        return [self._receipt(sender, message, "known"), *gradient]

    def _return_gradient(
        self, state: MicrobatchState, now: float, *only: PeerId
    ) -> list[PipelineEffect]:
        """Send the gradient to those that wait for it; it may be lost with a link. A question of
        forty bytes asks for megabytes, so it is sent again each time after twice as long."""
        key, effects = PayloadKey(state.step, "grad_out", state.microbatch), list[PipelineEffect]()
        for peer in sorted(state.upstreams):
            times, again_at = state.sends.get(peer, (0, now))
            if (only and peer not in only) or now < again_at:
                continue
            state.sends[peer] = times + 1, now + ANSWER_S * 2**times
            message = Backward(self._place.stage - 1, state.step, state.microbatch)
            effects.append(SendPayload(peer, message, (key,)))
        return effects

    def _queued_until(self, step: int) -> int:
        """Return the microbatches queued for steps up to ``step``; those of later ones can wait."""
        until = (known for known in self._microbatches.steps() if known <= step)
        return sum(self._microbatches.at(known).count(Phase.QUEUED) for known in until)

    def _give_back(self, state: MicrobatchState) -> list[Send]:
        said = Receipt(self._place.stage, state.step, state.microbatch, "declined")
        return [Send(peer, said) for peer in sorted(state.upstreams)]

    def _schedule(self, now: float) -> list[PipelineEffect]:
        """Keep the worker's queue filled."""
        effects: list[PipelineEffect] = []
        while self._computing < WORKER_DEPTH + self._more and not self._closed:
            first = self.work.first_waiting()
            state = None if first is None else self._microbatches.get(first)
            if state is None:
                break
            self._computing += 1
            effects.append(Compute(self._task(state)))
        return effects

    def _task(self, state: MicrobatchState) -> ForwardTask | LossTask | BackwardTask:
        if state.phase is Phase.RETURNED:
            self._microbatches.move(state, Phase.BACKWARD)
            return BackwardTask(state.step, state.microbatch)
        self._microbatches.move(state, Phase.FORWARD)
        if self._place.last:
            return LossTask(state.step, state.microbatch)
        return ForwardTask(state.step, state.microbatch)

    def _failed(
        self,
        state: MicrobatchState,
        task: ForwardTask | LossTask | BackwardTask,
        outcome: Outcome,
        now: float,
    ) -> list[PipelineEffect]:
        """A task went wrong: blame a bad tensor on who gave it and get it again."""
        blame, back = ("malformed-tensor", 20), isinstance(task, BackwardTask)
        ran_away = outcome.error in ("poisoned", "outlier")
        if ran_away and not self._divergence.found(state, back=back):
            spoils = outcome.error == "poisoned"
            blame = ("tensor-spoils-pass" if spoils else "tensor-out-of-range", SPOILT_POINTS)
        elif outcome.error != "codec" or (back and outcome.part):  # our own input has gone bad
            words = f"microbatch {state.microbatch}: the worker says {outcome.error}"
            if ran_away:
                return [Fault("diverged" if state.giver is None else "poisoned", words)]
            return [Fault("internal", words)]
        blamed = [Penalise(state.giver, *blame)] if state.giver else []
        if back:
            self._microbatches.move(state, Phase.SENT)
            by = state.giver if outcome.error != "poisoned" else None
            return [*blamed, *self.deliveries.redo(state.microbatch, now, malformed_by=by)]
        self._microbatches.pop(state.microbatch)
        if not state.upstreams:
            return [Fault("internal", "the worker refuses our own samples")]
        return [*blamed, *self._give_back(state)]

    def _receipt(self, to: PeerId, message: Forward | Have, verdict: Verdict) -> Send:
        of = self._place.stage, message.step, message.microbatch
        return Send(to, Receipt(*of, verdict))
