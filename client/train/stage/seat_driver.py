"""Drives one seat: messages and worker outcomes in, effects out. Decides nothing by itself.

Holds the seat machine, the payload bytes it names, the tasks queued for the worker, and the saver
of its versions. Tasks pass the seat's gate in the order in which the machine gives them, and the
worker runs them first in, first out: the machines rely on that.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
import numpy as np
import trio

from client.compute.payload import Encoding, sealed_digest
from client.compute.process import Call, RequestFailed, Worker, WorkerDied
from client.store.boundaries import BoundaryStore, PayloadGone, StoreFull
from client.train.machine.line_meter import MIN_PAYLOAD_BYTES
from client.train.stage.saver import StateSaver
from client.train.stage.stage_context import StageContext
from client.train.transfer.leaf_supply import LeafSupply
from client.train.transfer.state_size import transit_disk_bytes
from client.train.workers.patience import Patience
from client.train.workers.tasks import results, sources
from model_zoo.specs.tokens import token_dtype, token_values
from protocol.audit.commitment import contents, largest_list, root_of
from protocol.effects import Effect, Explain, Penalise, Send
from protocol.ids import PeerId
from protocol.pipeline.effects import (
    BackwardTask,
    Committed,
    CompareTask,
    Compute,
    ContributeTask,
    DropStep,
    Fault,
    ForwardTask,
    HashTask,
    Keep,
    LossTask,
    Outcome,
    PassTask,
    PayloadKey,
    ReduceTask,
    Rerouted,
    SendPayload,
    Task,
)
from protocol.rounds.effects import CommitTo
from protocol.rounds.shards import largest_segment
from protocol.seat.effects import (
    HeldOutLoss,
    SeatEffect,
    Snapshot,
    StatusChanged,
)
from protocol.seat.seat import Seat
from protocol.verdicts import Verdict
from protocol.view import SwarmView
from protocol.wire.messages import (
    AuditReply,
    Backward,
    Forward,
    HeldOut,
    Message,
    Receipt,
    Reduced,
    Segment,
)

BOUNDARY_MEMORY_BYTES = 512 * 2**20
"""For tensors in transit; more go to disk."""
SLACK_BYTES = 4096
"""Seal and scales of an encoded tensor beyond its elements."""

Reads = ForwardTask | LossTask | BackwardTask | PassTask
"""Tasks for which the first stage may read samples."""


class SeatOwner(Protocol):
    """Who holds the stage of a seat; called while the seat handles an input."""

    def seat_changed(self) -> None:
        """Version or state of the seat changed: tell the neighbours."""

    def fault(self, fault: Fault) -> None:
        """The seat cannot go on."""

    def worker_lost(self, death: WorkerDied) -> None:
        """The worker is to be replaced."""

    def look(self) -> None:
        """The seat drains, and nobody needs it any more."""


class SeatDriver:
    """One seat with its payloads, its worker and its saver."""

    def __init__(
        self,
        around: StageContext,
        owner: SeatOwner,
        seat: Seat,
        worker: Worker,
        nursery: trio.Nursery,
    ) -> None:
        self._around, self._owner, self.seat = around, owner, seat
        self._place, manifest = seat.place, around.engine.manifest
        self._ports, self._worker, self._nursery = around.engine, worker, nursery
        self._time_spent, self._view = around.time_spent, around.view
        self._samples = around.leaves if seat.place.first else None
        """Supplies our microbatches with tokens."""
        if self._samples is not None:
            self._samples.at(seat.step)
        self._gate = around.scheduler.open(self._start, self.rate, lambda: seat.pipeline.waiting)
        self._payloads = BoundaryStore(
            BOUNDARY_MEMORY_BYTES, transit_disk_bytes(manifest), around.snapshots
        )
        self.saver = StateSaver(worker, seat, around, nursery)
        batch, context = manifest.sequences_per_microbatch, manifest.model.context
        self._vocab, data = manifest.model.vocab, manifest.data
        self._masked = data.masked
        self._token_type = np.dtype(token_dtype(self._vocab, masked=self._masked))
        self._tokens_bytes = self._token_type.itemsize * batch * (context + 1)
        elements = batch * context * (-(-manifest.model.boundary_width // 128) * 128)
        self._largest_tensor = 4 * elements + SLACK_BYTES
        shard = Encoding(manifest.averaging_codec, "average", (largest_segment(seat.size),))
        self._largest_shard = shard.size_bytes
        listed = largest_list(manifest.microbatches_per_step)
        self._largest_shown = max(self._largest_tensor, self._largest_shard, listed)
        self._closed, self._patience = False, Patience()
        self._refused = ""
        self._graphs: set[tuple[int, int]] = set()
        """Steps and microbatches of which the worker keeps the graph."""
        self.answers_by = 0.0
        """Until when the worker has to have answered what it was given last."""
        self.busy_s = 0.0
        """Seconds the worker computed for this seat since its first microbatch was done: that one
        takes long, and a rate with it would stay low where there is little to do."""
        self.microbatches = -1
        """Backward passes done here after the first one."""

    def rate(self) -> float:
        """Return microbatches per second of computing, 0 before the second."""
        return max(0, self.microbatches) / self.busy_s if self.busy_s else 0.0

    # --- inputs ----------------------------------------------------------------------------

    def receive(self, sender: PeerId, message: Message, payload: bytes) -> None:
        """Hand a peer's message to the seat."""
        if isinstance(message, Segment | Reduced):
            if len(payload) > self._largest_shard:
                # a contribution is as one that never comes: nobody else sees whose fault it is
                points = 20 if isinstance(message, Reduced) else 0
                self._ports.perform(Penalise(sender, "shard-of-wrong-size", points))
                return
            if self._payloads.bytes_of(sender) + len(payload) > self._payloads.budget_bytes // 2:
                # of no round does an honest one send more than half; but of many, to who is behind
                self._ports.perform(Penalise(sender, "too-many-shards", 0))
                return
        if isinstance(message, AuditReply) and len(payload) > self._largest_shown:
            self._ports.perform(Penalise(sender, "audit-of-wrong-size", 20))
            return
        parts: tuple[bytes, ...] = (payload,)
        if isinstance(message, Forward | HeldOut):
            if not self._is_sound(payload):
                self._ports.perform(Penalise(sender, "malformed-forward", 20))
                return
            parts = (payload[: self._tokens_bytes], payload[self._tokens_bytes :])
        # the worker holds the bytes against their seal before we are Ready for them, or compute
        digest = b""
        if isinstance(message, Backward | Reduced | Segment):
            digest = sealed_digest(payload)
        if isinstance(message, Forward):
            digest = root_of(parts[0]) + sealed_digest(parts[1])
        if isinstance(message, AuditReply):
            digest = payload if message.name == "list" else _digest_of(message.name, payload)
        effects = self.seat.receive(sender, message, self._ports.now(), digest)
        self._perform(effects, parts)
        if isinstance(message, Forward) and len(payload) >= MIN_PAYLOAD_BYTES:
            self._acknowledge(sender, message, effects)

    def _acknowledge(self, sender: PeerId, message: Forward, effects: list[SeatEffect]) -> None:
        """Say that a large boundary is here, if it is kept: its sender times its line by that."""
        if any(isinstance(effect, Keep) for effect in effects):
            of = message.stage, message.step, message.microbatch
            self._ports.perform(Send(sender, Receipt(*of, "known", era=message.era)))

    def update_view(self, view: SwarmView) -> None:
        """Hand a new view of the swarm to the seat; save where the swarm begins to end."""
        ending = view.ending and not self._view.ending
        self._view = view
        self._perform(self.seat.update_view(view, self._ports.now()))
        if ending:
            self.save_now()

    def tell(self, told: Callable[[float], list[SeatEffect]]) -> None:
        """Tell the seat what has happened, by this method of it, and perform what it wants."""
        self._perform(told(self._ports.now()))

    def save_now(self) -> None:
        """Write a checkpoint of the version that the seat serves."""
        if self.seat.serving and not self._closed:
            self.saver.checkpoint(self.seat.step)

    def at_stake(self) -> int | None:
        """Return the version of which nobody else has a copy, and no disk; None: none is."""
        if not self.seat.serving:
            return None
        version, stage, me = self.seat.step, self._place.stage, self._place.me
        safe = (
            version <= max(self.saver.saved_version, 0)
            or any(r.version >= version for r in self._view.staying(stage, me))
            or self.seat.member.is_left_out  # others have made the next one
            or self._around.history.is_kept(stage, version)
        )
        return None if safe else version

    def close(self) -> None:
        """Forget the seat; outcomes still on their way are ignored."""
        self._closed = True
        self._time_spent.leaves(self.seat.place.stage, self._ports.now())
        self._gate.close()
        self._payloads.close()

    def _is_sound(self, payload: bytes) -> bool:
        """Whether the sizes of tokens and tensor are right, and the tokens, which are passed on to
        the last stage: it would blame us for wrong ones."""
        if not 0 < len(payload) - self._tokens_bytes <= self._largest_tensor:
            return False
        count = self._tokens_bytes // self._token_type.itemsize
        tokens = np.frombuffer(payload, self._token_type, count)
        return int(token_values(tokens, masked=self._masked).max()) < self._vocab

    # --- effects ---------------------------------------------------------------------------

    def _perform(self, effects: Sequence[SeatEffect], parts: tuple[bytes, ...] = ()) -> None:
        for effect in effects:
            if self._closed:
                return
            self._perform_one(effect, parts)
        self._tell_refusal()
        self._note_time()
        if self.seat.drained and not self._closed:
            self._owner.look()

    def _note_time(self) -> None:
        """Note what our time is spent on from now on, while the worker has no task."""
        seat = self.seat
        if seat.serving and not self._closed:
            averages = seat.member.plan_followed is not None
            now = self._ports.now()
            self._time_spent.serves(seat.place.stage, seat.step, now, averages=averages)

    def _tell_refusal(self) -> None:
        """Report once why a complete step may not be closed."""
        refused = self.seat.leader.refused
        if refused and refused != self._refused and not self._closed:
            words = f"stage {self.seat.place.stage}, step {self.seat.step} stays open: {refused}"
            self._ports.perform(Explain("round", words))
        self._refused = refused

    def _perform_one(self, effect: SeatEffect, parts: tuple[bytes, ...]) -> None:
        match effect:
            case Keep():
                self._keep(effect, parts)
            case SendPayload(peer, message):
                with suppress(PayloadGone):  # its step is over: the peer hears it by our heartbeat
                    payload = self._payload(effect)
                    self._ports.send(peer, message, payload)
            case DropStep(step):
                self._payloads.drop_step(step)
                self._graphs = {graph for graph in self._graphs if graph[0] != step}
            case Compute(HashTask() as task):
                self._start_beside(task)
            case Compute(task):
                self._enter_when_ready(task)
            case CommitTo():
                self._commit_to(effect)
            case Fault():
                self._owner.fault(effect)
            case StatusChanged():
                if self._samples is not None:
                    self._samples.at(self.seat.step)
                self._owner.seat_changed()
            case Rerouted():
                self._around.counting.note_rerouted(self.seat.place.stage, effect)
            case Committed():
                self._committed(effect)
            case Snapshot():
                self.saver.snapshot(effect.version)
            case HeldOutLoss() | Verdict():
                self._ports.seat_tells(effect)
            case _ if isinstance(effect, Effect):
                self._ports.perform(effect)

    def _committed(self, committed: Committed) -> None:
        """Tell of a version, and save it when it is due."""
        around, version = self._around, committed.version
        around.counting.note_committed(committed)
        around.engine.seat_tells(committed)
        policy, steps = around.engine.manifest.policy, around.engine.amendments.steps
        due = policy.newest_saved(version) == version or self._view.ending
        if (due or version >= steps) and not self._closed:
            self.saver.checkpoint(version)

    def _enter_when_ready(self, task: Task) -> None:
        samples = self._samples
        if samples is None or not isinstance(task, Reads):
            self._enter(task)
            return
        samples.begin(task.microbatch)
        if samples.here(task.microbatch):
            self._enter(task)
        else:
            self._nursery.start_soon(self._enter_later, task, samples)

    async def _enter_later(self, task: Reads, samples: LeafSupply) -> None:
        """Let a task enter when its samples are here. Others overtake it; a task whose step is over
        by then does nothing, as one that was late for another reason."""
        await samples.wait(task.microbatch, lambda: task.step < self.seat.step)
        if not self._closed:
            self._enter(task)

    def _enter(self, task: Task) -> None:
        self._gate.enter(task, in_round=_in_round(task))

    def _keep(self, keep: Keep, parts: tuple[bytes, ...]) -> None:
        self._put(zip(keep.keys, parts, strict=True))
        for key in keep.keys:
            if key.name == "grad_in":
                self._around.counting.note_gradient(self.seat.place.stage, key.step, key.item)

    def _put(self, payloads: Iterable[tuple[PayloadKey, bytes]]) -> None:
        try:
            for key, payload in payloads:
                self._payloads.put(key, payload)
        except StoreFull as error:
            self._owner.fault(Fault("internal", f"no room for boundary tensors: {error}"))

    def _payload(self, sending: SendPayload) -> bytes:
        """Return what is sent with a message; raises ``PayloadGone``."""
        return b"".join(self._payloads.get(key) for key in sending.keys)

    def _commit_to(self, commit: CommitTo) -> None:
        """Sign what we contribute before anybody gets it."""
        digests, get, of = {}, self._payloads.get, commit.commitment
        for microbatch, keys in commit.microbatches.items():
            try:
                digests[microbatch] = tuple(_digest_of(key.name, get(key)) for key in keys)
            except PayloadGone:
                digests[microbatch] = ()  # an auditor will hold that against us; the round goes on
        try:
            segments = [sealed_digest(get(key)) if key else b"" for key in commit.segments]
        except PayloadGone:
            return  # we cannot contribute it either
        encoded = contents(digests)
        key = PayloadKey(of.step, "list", 0, of.attempt, self.seat.place.me)
        self._keep(Keep((key,)), (encoded,))
        named = msgspec.structs.replace(of, root=root_of(encoded), segments=tuple(segments))
        signed = self._ports.notary.signed(named)
        if signed is not None:
            self._perform(self.seat.committed(commit, signed, self._ports.now()))

    # --- the worker ------------------------------------------------------------------------

    def _start(self, task: Task) -> bool:
        """Give a task to the worker; False if that was not possible."""
        try:
            keys = sources(task, self._place, graph_kept=self._has_graph(task))
            payloads = [b"" if key is None else self._payloads.get(key) for key in keys]
            submitted = self._worker.submit(task, payloads)
        except PayloadGone:
            self._perform(self.seat.computed(task, Outcome(error="gone"), self._ports.now()))
        except WorkerDied as death:
            self._owner.worker_lost(death)
        else:
            self._time_spent.begins(self._ports.now())
            self._nursery.start_soon(self._finish, task, submitted)
            return True
        self._has_read(task)
        return False

    def _has_graph(self, task: Task) -> bool:
        """Whether the worker has what a pass back needs beside the gradient."""
        return isinstance(task, BackwardTask) and (task.step, task.microbatch) in self._graphs

    def _note_graph(self, task: Task, outcome: Outcome) -> None:
        if isinstance(task, ForwardTask | BackwardTask):
            change = self._graphs.add if outcome.graph_kept else self._graphs.discard
            change((task.step, task.microbatch))

    def _has_read(self, task: Task) -> None:
        if self._samples is not None and isinstance(task, Reads) and not self._closed:
            self._samples.end(task.microbatch)

    def _start_beside(self, task: HashTask) -> None:
        """Give the worker a task that no other waits for."""
        try:
            submitted = self._worker.submit(task)
        except WorkerDied as death:
            self._owner.worker_lost(death)
        else:
            self._nursery.start_soon(self._take_outcome, task, submitted)

    async def _finish(self, task: Task, submitted: Call[Outcome]) -> None:
        """Wait for a task's end, tell the seat, and start the next one."""
        try:
            await self._take_outcome(task, submitted)
        finally:
            self._time_spent.ends(self._ports.now())
            self._has_read(task)
            self._gate.ended()

    async def _take_outcome(self, task: Task, submitted: Call[Outcome]) -> None:
        """Wait for a task's reply, store its results and tell the seat."""
        begun, patience_s = self._ports.now(), self._patience.seconds(task)
        self.answers_by = max(self.answers_by, begun + patience_s)
        try:
            outcome, payloads = await submitted.wait(patience_s)
        except (RequestFailed, WorkerDied) as failure:
            self._failed(task, failure)
            return
        if self._closed:
            return
        self._patience.note(task, self._ports.now() - begun)
        if not isinstance(task, HashTask):  # it is computed beside the others
            self.busy_s += outcome.seconds
        self._store(task, payloads)
        self._note_graph(task, outcome)
        if isinstance(task, ContributeTask) and not self._as_planned(task, outcome):
            self._around.counting.seen.doubled_microbatches += 1
        self._perform(self.seat.computed(task, outcome, self._ports.now()))

    def _as_planned(self, task: ContributeTask, outcome: Outcome) -> bool:
        """Whether a contribution is what its plan counts (a newer plan may have come meanwhile)."""
        member = self.seat.member
        return task.attempt != member.promised or len(outcome.counted) == len(member.counted)

    def _store(self, task: Task, payloads: list[bytes]) -> None:
        self._put(zip(results(task, self._place), payloads, strict=False))
        if isinstance(task, BackwardTask | LossTask):
            self.microbatches += 1
            self.busy_s = self.busy_s if self.microbatches else 0.0

    def _failed(self, task: Task, failure: RequestFailed | WorkerDied) -> None:
        if self._closed:
            return
        if isinstance(failure, WorkerDied):
            self._owner.worker_lost(failure)
            return
        apart = isinstance(task, PassTask) and task.into != "less"
        if failure.kind == "oom" and isinstance(task, Reads) and not apart:
            self._owner.fault(Fault("memory", str(failure)))  # less was tried already
            return
        if failure.kind == "graph" and self._has_graph(task):  # dropped meanwhile, to save memory
            self._graphs.clear()
            self._enter_when_ready(task)
            return
        error = "codec" if failure.kind == "shape" else failure.kind
        outcome = Outcome(error=error, part=failure.part)
        self._perform(self.seat.computed(task, outcome, self._ports.now()))


def _in_round(task: Task) -> bool:
    """Whether a round waits for a task."""
    match task:
        case ForwardTask() | LossTask() | BackwardTask() | CompareTask():
            return False
        case PassTask():
            return task.into == "less"
        case ReduceTask():
            return task.compare_to is None
        case _:
            return True


def _digest_of(name: str, payload: bytes) -> bytes:
    """Return how a list names a payload: a tensor by its seal, which the worker checks."""
    return root_of(payload) if name == "tokens" else sealed_digest(payload)
