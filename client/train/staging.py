"""Taking a stage: from the matching's word to a serving seat, and again whenever the seat is lost.

The way there: the training text (first stage only), the stage opened in the worker, then either
version 0 from the seed (a swarm that has not begun) or the state of a running stage, downloaded
while the rounds since are collected. Holds the worker, the assigned stage and the seat's driver.
A worker that dies is started again; a seat that cannot follow its siblings is taken anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from client.compute.process import RequestFailed, Worker, WorkerDied, open_worker
from client.compute.requests import Load, PrepareData
from client.config import Settings
from client.errors import ExitCode, UserError
from client.store.boundaries import BoundaryStore
from client.store.checkpoints import CheckpointFolder
from client.train.blobs import Download, DownloadFailed, Shelf, offer_of_file
from client.train.capacity import Capacity, usable_memory_bytes
from client.train.hub import Hub
from client.train.opening import open_stage_request, stage_fits
from client.train.payloads import Payloads
from client.train.saver import StateSaver
from client.train.seat_driver import SeatDriver, SeatHooks
from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.pipeline.effects import Committed, Fault, GradientAccepted, Rerouted
from protocol.pipeline.pipeline import Place
from protocol.seat.effects import Snapshot
from protocol.seat.seat import Seat
from protocol.view import SwarmView
from protocol.wire.messages import (
    Admit,
    BlobOffer,
    BlobQuery,
    Chunk,
    JoinStage,
    Message,
    NoBlob,
    SeatStatus,
)

JOIN_RETRY_S = 1.0
JOIN_TIMEOUT_S = 600.0
RETRY_S = 2.0
MAX_WORKER_RESTARTS = 5
"""Within one run; a worker that dies more often has a reason that a restart does not mend."""


class Owner(Hub, Protocol):
    """What staging needs of the engine beyond a hub."""

    def seats_changed(self) -> None:
        """Our seat changed: tell the neighbours."""

    def serving(self, stage: int) -> None:
        """Our seat serves."""

    def recovered(
        self, words: str, fault: str, phase: str, step: int | None, peer: str | None
    ) -> None:
        """Log a step of a recovery."""

    def stage_closed(self, committed: Committed) -> None:
        """Our stage has committed a step."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where staging keeps things."""

    checkpoints: Path
    snapshots: Path
    data: Path
    """The training text as plain bytes."""


class Staging:
    """See the module's docstring."""

    def __init__(
        self,
        owner: Owner,
        me: PeerId,
        manifest: Manifest,
        swarm: str,
        settings: Settings,
        capacity: Callable[[], Capacity],
        folders: Folders,
        data_source: str,
        shelf: Shelf,
    ) -> None:
        self._owner, self._me, self._manifest, self._swarm = owner, me, manifest, swarm
        self._settings, self._capacity, self._folders = settings, capacity, folders
        self._data_source, self._shelf = data_source, shelf
        self.worker: Worker | None = None
        self.worker_restarts = 0
        self.driver: SeatDriver | None = None
        self.saver: StateSaver | None = None
        self.stage: int | None = None
        self.phase = "idle"
        """What is being done, in words."""
        self.view = SwarmView(((),) * manifest.stage_count)
        self.newest = [0] * manifest.stage_count
        """Newest version ever seen served, by stage."""
        self.download: Download | None = None
        self.failure: UserError | None = None
        """Why this volunteer cannot go on at all."""
        self._allowed = False
        self._admits: trio.MemorySendChannel[Admit] | None = None
        self._changed = trio.Event()
        self._retake = trio.Event()
        self._worker_ready = trio.Event()
        self._detected_at: float | None = None
        self._death: WorkerDied | None = None
        self._announced = False
        self.rerouted = self.accepted = self.rounds = 0
        self.done_microbatches = 0

    # --- what the engine tells us ------------------------------------------------------------

    def assign(self, stage: int) -> None:
        """The matching gives us a stage."""
        self.stage = stage
        self._changed.set()

    def unassign(self, reason: str) -> None:
        """The matching takes the stage away."""
        self.stage = None
        self._close_seat()
        self._changed.set()

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
        self._changed.set()

    def peer_lost(self, peer: PeerId) -> None:
        """A peer is gone: downloads must not wait for it."""
        if self.download is not None:
            self.download.lost(peer)

    def receive(self, peer: PeerId, message: Message, payload: bytes) -> None:
        """Take a message that concerns our seat or a download."""
        match message:
            case BlobOffer() | NoBlob() | Chunk():
                if self.download is not None:
                    self.download.receive(peer, message, payload)
            case Admit() if message.joiner == self._me:
                if self._admits is not None and message.stage == self.stage:
                    self._offer_admit(message)
            case _ if self.driver is not None and _stage_of(message) in (None, self.stage):
                self.driver.receive(peer, message, payload)
            case _:
                return

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
        return [self.driver.seat.status(self.rate())] if self.driver else []

    def rate(self) -> float:
        """Microbatches per second of compute time, 0 before the first."""
        driver = self.driver
        return driver.microbatches / driver.busy_s if driver and driver.busy_s else 0.0

    # --- running -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a worker alive and, whenever a stage is assigned, a seat in it."""
        while self.worker_restarts <= MAX_WORKER_RESTARTS and self.failure is None:
            try:
                async with open_worker() as worker:
                    self.worker = worker
                    self._worker_ready.set()
                    await self._serve()
            except WorkerDied as death:
                self._worker_died(death)
        words = "the compute worker keeps dying"
        self.failure = self.failure or UserError(words, "see the log; try --threads or --memory")

    async def worker_ready(self) -> Worker:
        """Wait for the compute worker."""
        while self.worker is None:
            await self._worker_ready.wait()
        return self.worker

    async def _serve(self) -> None:
        while self.failure is None:
            while self.stage is None:
                self.phase = "waiting for a stage"
                await self._next_change()
            async with trio.open_nursery() as nursery:
                self._retake = trio.Event()
                nursery.start_soon(self._take, self.stage, nursery)
                await self._retake.wait()
                nursery.cancel_scope.cancel()
            self._close_seat()
            if self._death is not None:
                raise self._death

    async def _take(self, stage: int, nursery: trio.Nursery) -> None:
        """One attempt to serve a stage; ends when the seat stands (its tasks go on)."""
        try:
            corpus = await self._prepare_data() if stage == 0 else ""
            size = await self._open_stage(stage, corpus)
            if await self._must_join(stage):
                await self._join(stage, size, nursery)
            else:
                self._seat(stage, size, version=0, serving=True, nursery=nursery)
        except (DownloadFailed, RequestFailed) as error:
            self._owner.perform(Explain("transfer", f"stage {stage}: {error}; retrying", "warning"))
            await trio.sleep(RETRY_S)
            self._retake.set()
        except WorkerDied as death:
            self._died(death)
        except UserError as error:
            self.failure = error
            self._retake.set()

    # --- steps of taking a stage -------------------------------------------------------------

    async def _prepare_data(self) -> str:
        """Have the training text here: this machine's own, or copied from a peer."""
        self.phase = "preparing the training text"
        data, path = self._manifest.data, self._folders.data
        worker = await self.worker_ready()
        prepare = PrepareData(source=self._data_source, digest=data.digest, path=str(path))
        try:
            await worker.call(prepare)
        except RequestFailed as failure:
            if failure.kind != "data":
                raise
            self._owner.perform(Explain("transfer", f"copying the training text: {failure}"))
            await self._fetch_data(path)
            again = PrepareData(source=str(path), digest=data.digest, path=str(path))
            await worker.call(again)
        offer = await trio.to_thread.run_sync(offer_of_file, "data", 0, 0, path)
        self._shelf.put(offer, path, temporary=False)
        return str(path)

    async def _fetch_data(self, path: Path) -> None:
        donors = [r.peer for r in self.view.serving(0) if r.peer != self._me]
        if not donors:
            raise UserError(
                "this machine does not have the swarm's training text and nobody serves it yet",
                f"give it with --data FILE (BLAKE2b {self._manifest.data.digest[:12]}...)",
                ExitCode.CONFIG,
            )
        await self._fetch(BlobQuery("data", 0, 0), donors, path)

    async def _open_stage(self, stage: int, corpus: str) -> int:
        self.phase = f"opening stage {stage}"
        worker = await self.worker_ready()
        available = usable_memory_bytes(self._capacity(), self._settings)
        graphs = stage_fits(self._manifest, stage, available)
        request = open_stage_request(
            self._manifest, self._swarm, stage, self._settings, graphs, corpus
        )
        opened, _ = await worker.call(request)
        return opened.parameters

    async def _must_join(self, stage: int) -> bool:
        """Whether the swarm has begun; waits while its state of our stage is nowhere to be had."""
        said = False
        while True:
            others = [r for r in self.view.serving(stage) if r.peer != self._me]
            newest = max(self.view.committed(s) for s in range(self._manifest.stage_count))
            if any(r.version > 0 for r in others):
                return True
            if newest == 0:
                return False
            if others:
                return False  # they are at version 0 and so is the swarm's first step here
            if not said:
                words = f"stage {stage} is lost: nobody alive has its state at version {newest}"
                self._owner.perform(Explain("transfer", words, "error"))
                said = True
            self.phase = f"waiting for somebody who has the state of stage {stage}"
            await self._next_change()

    async def _join(self, stage: int, size: int, nursery: trio.Nursery) -> None:
        """Observe the running rounds from the version we are admitted at, and download it."""
        admit = await self._admission(stage)
        self._seat(stage, size, version=admit.version, serving=False, nursery=nursery)
        path = self._folders.snapshots / f"joined-{stage}-v{admit.version}.safetensors"
        query = BlobQuery("state", stage, admit.version)
        await self._fetch(query, [PeerId(donor) for donor in admit.donors], path)
        worker = await self.worker_ready()
        try:
            await worker.call(Load(path=str(path), version=admit.version))
        finally:
            path.unlink(missing_ok=True)
        if self.driver is not None:
            self.driver.state_loaded()

    async def _admission(self, stage: int) -> Admit:
        send, receive = trio.open_memory_channel[Admit](4)
        self._admits = send
        try:
            with trio.fail_after(JOIN_TIMEOUT_S):
                while True:
                    self.phase = f"asking to join stage {stage}"
                    for replica in self.view.serving(stage):
                        self._owner.send(replica.peer, JoinStage(stage))
                    with trio.move_on_after(JOIN_RETRY_S):
                        admit = await receive.receive()
                        if admit.version >= self.view.committed(stage) - 1:
                            return admit
        except trio.TooSlowError:
            raise DownloadFailed(f"nobody admitted us to stage {stage}") from None
        finally:
            self._admits = None

    async def _fetch(self, query: BlobQuery, donors: list[PeerId], path: Path) -> None:
        self.phase = f"downloading {query.kind} of stage {query.stage}"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.download = Download(self._owner, query, donors, path)
        try:
            await self.download.run(JOIN_TIMEOUT_S)
        finally:
            self.download = None

    # --- the seat ----------------------------------------------------------------------------

    def _seat(
        self, stage: int, size: int, *, version: int, serving: bool, nursery: trio.Nursery
    ) -> None:
        manifest, worker = self._manifest, self.worker
        if worker is None:
            return
        place = Place(self._me, stage, manifest.stage_count, manifest.microbatches_per_step)
        seat = Seat(
            place,
            size=size,
            steps=manifest.steps,
            tokens_per_step=manifest.tokens_per_microbatch * manifest.microbatches_per_step,
            step=version,
            serving=serving,
        )
        store = BoundaryStore(
            self._settings.boundary_memory_bytes, self._settings.boundary_disk_bytes
        )
        hooks = SeatHooks(
            changed=self._seat_changed,
            committed=self._committed,
            rerouted=self._rerouted,
            accepted=self._gradient_accepted,
            snapshot=self._snapshot,
            fault=self._fault,
            worker_died=self._died,
        )
        driver = SeatDriver(seat, manifest, worker, Payloads(store), self._owner, hooks, nursery)
        checkpoints = CheckpointFolder(self._folders.checkpoints, self._settings.checkpoint_keep)
        self.saver = StateSaver(
            worker,
            stage,
            checkpoints,
            self._folders.snapshots,
            self._shelf,
            self._owner,
            nursery,
        )
        self.driver, self._announced = driver, False
        self._seat_changed()
        if self._allowed:
            driver.allow_training()
        driver.update_view(self.view)

    def _close_seat(self) -> None:
        if self.driver is None:
            return
        self.done_microbatches += self.driver.microbatches
        self.driver.close()
        self.driver = None
        self._owner.seats_changed()

    def _seat_changed(self) -> None:
        driver = self.driver
        if driver is None:
            return
        self.phase = driver.seat.why()
        self._owner.seats_changed()
        if driver.seat.serving and not self._announced:
            self._announced = True
            self._owner.serving(driver.seat.place.stage)

    def _committed(self, committed: Committed) -> None:
        self.rounds += 1
        self._owner.stage_closed(committed)
        manifest, saver = self._manifest, self.saver
        last = committed.version >= manifest.steps
        if saver is not None and (
            last or committed.version % manifest.policy.checkpoint_every == 0
        ):
            saver.checkpoint(committed.version)

    def _snapshot(self, snapshot: Snapshot) -> None:
        if self.saver is not None:
            self.saver.snapshot(snapshot.version)

    def _rerouted(self, rerouted: Rerouted) -> None:
        self.rerouted += 1
        if self._detected_at is None:
            self._detected_at = self._owner.now()
            words = f"{rerouted.cause}: its microbatches go to other replicas"
            self._owner.recovered(words, "peer", "detected", rerouted.step, rerouted.lost_peer)

    def _gradient_accepted(self, accepted: GradientAccepted) -> None:
        self.accepted += 1
        if accepted.rerouted and self._detected_at is not None:
            taken_s = self._owner.now() - self._detected_at
            self._detected_at = None
            words = f"first gradient of a re-routed microbatch {taken_s:.2f} s after detection"
            self._owner.recovered(words, "peer", "recovered", accepted.step, None)

    def _fault(self, fault: Fault) -> None:
        if fault.kind == "poisoned":
            self.failure = UserError(
                f"training diverged: {fault.words}", "found a swarm with a lower learning rate"
            )
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
        self.worker, self._worker_ready, self._death = None, trio.Event(), None
        self.worker_restarts += 1
        self._close_seat()
        words = f"{death}; starting it again"
        self._owner.recovered(words, "worker", "detected", None, None)

    def _offer_admit(self, admit: Admit) -> None:
        try:
            if self._admits is not None:
                self._admits.send_nowait(admit)
        except trio.WouldBlock:
            return

    async def _next_change(self) -> None:
        self._changed = trio.Event()
        with trio.move_on_after(RETRY_S):
            await self._changed.wait()


def _stage_of(message: Message) -> int | None:
    stage = getattr(message, "stage", None)
    return stage if isinstance(stage, int) else None
