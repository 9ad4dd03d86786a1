"""A volunteer's stage: from the matching's word to a serving seat, again whenever it is lost.

Holds the worker process, the assigned stage, the attempt to take it and the seat's driver. A worker
that dies is started again; a seat that cannot follow its siblings is taken anew. How a stage is
taken is ``taking``'s business, what a seat does its driver's.
"""

from __future__ import annotations

from typing import Protocol

import trio

from client.compute.process import RequestFailed, Worker, WorkerDied, open_worker
from client.errors import UserError
from client.store.boundaries import BoundaryStore
from client.store.checkpoints import CheckpointFolder
from client.train.blobs import DownloadFailed
from client.train.hub import Hub
from client.train.payloads import Payloads
from client.train.saver import StateSaver
from client.train.seat_driver import SeatDriver, SeatHooks
from client.train.taking import Taking, Terms, prepare_request
from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.pipeline.effects import Committed, Fault, GradientAccepted, Rerouted
from protocol.pipeline.pipeline import Place
from protocol.seat.effects import Snapshot
from protocol.seat.seat import Seat
from protocol.view import SwarmView
from protocol.wire.messages import Message, SeatStatus

RETRY_S = 2.0
MAX_WORKER_RESTARTS = 5
"""Within one run; a worker that dies more often has a reason that a restart does not mend."""


class Owner(Hub, Protocol):
    """What staging needs of the engine beyond a hub."""

    def seats_changed(self) -> None:
        """Our seat changed: tell the neighbours."""

    def serving(self, stage: int) -> None:
        """Our seat serves."""

    def stage_closed(self, committed: Committed) -> None:
        """Our stage has committed a step."""


class Staging:
    """See the module's docstring. A ``Tenant`` of the engine."""

    def __init__(self, owner: Owner, terms: Terms) -> None:
        self._owner, self._terms = owner, terms
        stages = terms.manifest.stage_count
        self.view = SwarmView(((),) * stages)
        self.newest = [0] * stages
        """Newest version ever seen served, by stage."""
        self.worker: Worker | None = None
        self.worker_restarts = 0
        self.stage: int | None = None
        self.driver: SeatDriver | None = None
        self.saver: StateSaver | None = None
        self.failure: UserError | None = None
        """Why this volunteer cannot go on at all."""
        self.rerouted = self.replayed = self.rounds = self.restarted = self.miscounted = 0
        self._taking: Taking | None = None
        self._death: WorkerDied | None = None
        self._allowed = self._announced = False
        self._assigned = trio.Event()
        self._retake = trio.Event()
        self._worker_started = trio.Event()
        self._detected_at: float | None = None

    @property
    def phase(self) -> str:
        """Say in words what is being done."""
        if self.driver is not None and self.driver.seat.loaded:
            return self.driver.seat.why()
        return self._taking.phase if self._taking else "waiting for a stage"

    # --- what the engine tells us ------------------------------------------------------------

    def assign(self, stage: int) -> None:
        """The matching gives us a stage."""
        self.stage = stage
        self._assigned.set()

    def unassign(self, reason: str) -> None:
        """The matching takes the stage away."""
        self.stage = None
        self._close_seat()
        self._retake.set()

    def allow_training(self) -> None:
        """The swarm has started."""
        self._allowed = True
        if self.driver is not None:
            self.driver.allow_training()

    def update_view(self, view: SwarmView) -> None:
        """Take a new view of the swarm."""
        self.view = view
        self.newest = [max(old, view.committed(s)) for s, old in enumerate(self.newest)]
        if self.driver is not None:
            self.driver.update_view(view)
        if self._taking is not None:
            self._taking.view_changed()

    def peer_lost(self, peer: PeerId) -> None:
        """A peer is gone."""
        if self._taking is not None:
            self._taking.peer_lost(peer)

    def receive(self, peer: PeerId, message: Message, payload: bytes) -> None:
        """Take a message that concerns our seat or the attempt to get one."""
        if self._taking is not None and self._taking.receive(peer, message, payload):
            return
        stage = getattr(message, "stage", None)
        if self.driver is not None and stage in (None, self.stage):
            self.driver.receive(peer, message, payload)

    def tick(self, now: float) -> None:
        """Let the seat act on its deadlines."""
        deadline = self.next_deadline()
        if self.driver is not None and deadline is not None and deadline <= now:
            self.driver.tick()

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return self.driver.seat.next_deadline() if self.driver else None

    def seats(self) -> list[SeatStatus]:
        """Return what heartbeats say of our seats."""
        return [self.driver.seat.status(self.driver.rate())] if self.driver else []

    # --- running -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a worker alive and, whenever a stage is assigned, a seat in it."""
        while self.worker_restarts <= MAX_WORKER_RESTARTS and self.failure is None:
            try:
                async with open_worker() as worker:
                    self.worker = worker
                    self._worker_started.set()
                    await self._serve(worker)
            except WorkerDied as death:
                self._worker_died(death)
        if self.failure is None:
            words = f"the compute worker died {self.worker_restarts} times"
            self.failure = UserError(words, "see the log; fewer --threads may help")

    async def worker_ready(self) -> Worker:
        """Wait for the compute worker."""
        while self.worker is None:
            await self._worker_started.wait()
        return self.worker

    async def text_problem(self) -> str:
        """Say why this machine does not have the swarm's training text; empty if it has.

        Who has it can begin stage 0, others can only copy it from somebody who has.
        """
        worker, terms = await self.worker_ready(), self._terms
        try:
            await worker.call(prepare_request(terms))
        except RequestFailed as failure:
            self._owner.perform(Explain("transfer", str(failure), "warning"))
            return str(failure)
        return ""

    async def _serve(self, worker: Worker) -> None:
        """Take whatever stage is assigned, until the worker dies or we cannot go on."""
        while self.failure is None:
            while self.stage is None:
                self._assigned = trio.Event()
                await self._assigned.wait()
            self._retake = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._take, self.stage, worker, nursery)
                await self._retake.wait()
                nursery.cancel_scope.cancel()
            self._taking = None
            self._close_seat()
            if self._death is not None:
                raise self._death

    async def _take(self, stage: int, worker: Worker, nursery: trio.Nursery) -> None:
        """One attempt to serve a stage; ends when the seat stands, whose tasks go on."""
        taking = self._taking = Taking(self._terms, stage, worker, lambda: self.view)
        try:
            size = await taking.open()
            if await taking.must_join():
                admit = await taking.admission()
                self._sit(worker, size, admit.version, nursery, serving=False)
                await taking.load(admit)
                if self.driver is not None:
                    self.driver.state_loaded()
            else:
                self._sit(worker, size, 0, nursery, serving=True)
        except (DownloadFailed, RequestFailed) as error:
            words = f"stage {stage}: {error}; trying again"
            self._owner.perform(Explain("transfer", words, "warning"))
            await trio.sleep(RETRY_S)
            self._retake.set()
        except WorkerDied as death:
            self._died(death)
        except UserError as error:
            self.failure = error
            self._retake.set()

    # --- the seat ----------------------------------------------------------------------------

    def _sit(
        self, worker: Worker, size: int, version: int, nursery: trio.Nursery, *, serving: bool
    ) -> None:
        """Open the seat: from now on messages and the view reach it."""
        if self.stage is None:
            return
        terms, settings = self._terms, self._terms.settings
        seat = new_seat(terms, self.stage, size, version, serving=serving)
        store = BoundaryStore(settings.boundary_memory_bytes, settings.boundary_disk_bytes)
        hooks = SeatHooks(
            changed=self._seat_changed,
            committed=self._committed,
            rerouted=self._rerouted,
            accepted=self._gradient_accepted,
            snapshot=self._snapshot,
            fault=self._fault,
            worker_died=self._died,
        )
        self.saver = StateSaver(
            worker,
            self.stage,
            CheckpointFolder(terms.folders.checkpoints, settings.checkpoint_keep),
            terms.folders.snapshots,
            terms.shelf,
            self._owner,
            nursery,
        )
        self.driver = SeatDriver(
            seat, terms.manifest, worker, Payloads(store), self._owner, hooks, nursery
        )
        self._announced = False
        self._seat_changed()
        if self._allowed:
            self.driver.allow_training()
        self.driver.update_view(self.view)

    def _close_seat(self) -> None:
        if self.driver is None:
            return
        self.miscounted += self.driver.miscounted
        self.driver.close()
        self.driver = None
        self._owner.seats_changed()

    # --- what the seat tells us --------------------------------------------------------------

    def _seat_changed(self) -> None:
        if self.driver is None:
            return
        self._owner.seats_changed()
        if self.driver.seat.serving and not self._announced:
            self._announced = True
            self._owner.serving(self.driver.seat.place.stage)

    def _committed(self, committed: Committed) -> None:
        self.rounds += 1
        self.restarted += max(0, committed.attempt - 1)
        self._owner.stage_closed(committed)
        manifest = self._terms.manifest
        due = committed.version % manifest.policy.checkpoint_every == 0
        if self.saver is not None and (due or committed.version >= manifest.steps):
            self.saver.checkpoint(committed.version)

    def _snapshot(self, snapshot: Snapshot) -> None:
        if self.saver is not None:
            self.saver.snapshot(snapshot.version)

    def _rerouted(self, rerouted: Rerouted) -> None:
        self.rerouted += 1
        self.replayed += rerouted.replayed
        if self._detected_at is None:
            self._detected_at = self._owner.now()
            words = f"{rerouted.cause}: its microbatches go to other replicas"
            self._terms.news.recovery(words, "peer", "detected", rerouted.step, rerouted.lost_peer)

    def _gradient_accepted(self, accepted: GradientAccepted) -> None:
        if accepted.rerouted and self._detected_at is not None:
            taken_s = self._owner.now() - self._detected_at
            self._detected_at = None
            words = f"first gradient of a re-routed microbatch {taken_s:.2f} s after detection"
            self._terms.news.recovery(words, "peer", "recovered", accepted.step)

    def _fault(self, fault: Fault) -> None:
        if fault.kind == "poisoned":
            words = f"training diverged: {fault.words}"
            self.failure = UserError(words, "found a swarm with a lower learning rate")
        else:
            words = f"{fault.words}; taking the stage anew"
            self._owner.perform(Explain("round", words, "warning"))
        self._retake.set()

    # --- the worker --------------------------------------------------------------------------

    def _died(self, death: WorkerDied) -> None:
        """The worker is gone: unwind to ``run``, which starts another one."""
        self._death = death
        self._retake.set()

    def _worker_died(self, death: WorkerDied) -> None:
        self.worker, self._worker_started, self._death = None, trio.Event(), None
        self.worker_restarts += 1
        self._close_seat()
        self._terms.news.recovery(f"{death}; starting it again", "worker", "detected")


def new_seat(terms: Terms, stage: int, size: int, version: int, *, serving: bool) -> Seat:
    """Return a seat of the swarm's manifest."""
    manifest = terms.manifest
    return Seat(
        Place(terms.me, stage, manifest.stage_count, manifest.microbatches_per_step),
        size=size,
        steps=manifest.steps,
        tokens_per_step=manifest.tokens_per_microbatch * manifest.microbatches_per_step,
        step=version,
        serving=serving,
    )
