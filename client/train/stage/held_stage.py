"""One held stage: from the assignment to a serving seat, again whenever it is lost, until given up.

Holds a worker process, the attempt to take the stage and the seat's driver. A worker that dies is
replaced; a seat that cannot follow its siblings is taken anew. How a stage is taken is ``taking``'s
business, what a seat does its driver's. It knows nothing of other stages held here.
"""

from __future__ import annotations

import math
import signal
from contextlib import suppress

import msgspec
import trio

from client.compute.process import RequestFailed, Worker, WorkerDied
from client.compute.requests import SetThreads
from client.errors import ExitCode, UserError
from client.store.boundaries import BoundaryStore
from client.train.stage.payloads import Payloads
from client.train.stage.saver import StateSaver
from client.train.stage.seat_driver import SeatDriver, SeatHooks
from client.train.stage.stage_acquisition import Taking
from client.train.stage.stage_context import House
from client.train.transfer.blobs import DownloadFailed
from client.train.transfer.inventory import checkpoint_folder
from client.train.workers.opening import Fit
from client.train.workers.patience import AT_LEAST_S
from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.pipeline.effects import Committed, Fault
from protocol.pipeline.place import Place
from protocol.seat.effects import Snapshot
from protocol.seat.parting import is_ending
from protocol.seat.seat import Seat
from protocol.view import SwarmView
from protocol.wire.messages import Message
from protocol.wire.parts import SeatStatus

RETRY_S = 2.0
MAX_WORKER_RESTARTS = 5
"""Within one tenancy; a worker that dies more often has a reason that a restart does not mend."""
HAND_OVER_S = 60.0
"""How long a seat that leaves may take to bring what it has counted into its step's round."""
TOLD_S = 2.0
"""After so long the heartbeats have told everybody that a seat leaves: nobody sends it anything."""
NO_MEMORY = "close other programs, give --device cpu, or join a swarm with shorter sequences"
PART_S = 180.0
"""How long a last checkpoint may take after that, and a copy of it elsewhere."""


DIVERGED = (
    "resume to try again from a checkpoint; if it happens again, found a swarm with a lower "
    "learning rate"
)


class Diverged(UserError):
    """Training has diverged here, again and with nobody else's tensors: to be paused, not ended."""


class Tenancy:
    """See the module's docstring; ``run`` is its life."""

    def __init__(self, house: House, stage: int, view: SwarmView, *, allowed: bool) -> None:
        self._house, self.stage, self._view = house, stage, view
        self._allowed = allowed
        self.worker: Worker | None = None
        self.worker_restarts = 0
        self.driver: SeatDriver | None = None
        self.saver: StateSaver | None = None
        self._fit: Fit | None = None
        self._taking: Taking | None = None
        self._answers_by = -math.inf
        """Until when the worker has to have answered what the seat before gave it."""
        self._leave_by: float | None = None
        self._told_by: float | None = None
        self.parting: trio.Event | None = None
        """The worker is still wanted when the seat has left; set when it has."""
        self._announced = False
        self._diverged = False
        """Our own samples have made numbers run away before, in a state that was given up then."""
        self._beginning = False
        """Between two lineages: the seat is closed and will be opened again."""
        self._seat_number = 0
        self._vow = (0, (0, 0))
        """Era and vow of our last seat: what it sent for that attempt may still arrive."""
        self._failure: UserError | WorkerDied | None = None
        self._retake = trio.Event()
        self._life = trio.CancelScope()

    @property
    def phase(self) -> str:
        """Say in words what is being done."""
        if self.driver is not None and self.driver.seat.loaded:
            return self.driver.seat.why()
        return self._taking.phase if self._taking else f"making room for stage {self.stage}"

    @property
    def leaving(self) -> bool:
        """Whether it is to be given up."""
        return self._leave_by is not None

    # --- what staging tells us ---------------------------------------------------------------

    def leave(self) -> None:
        """Give the stage up: at once if nothing is lost by it, else when the step is closed."""
        now = self._house.owner.now()
        if self._leave_by is None:
            self._leave_by, self._told_by = now + HAND_OVER_S, now + TOLD_S
        self._house.memory_budget.set_leaving(self.stage, True)
        if self.driver is None or not self.driver.seat.serving:
            self._life.cancel()
        else:
            self.driver.leave()
            self._house.owner.seats_changed()

    def part(self) -> None:
        """The seat has left, or has had time enough."""
        if self.parting is None or self.parting.is_set():
            self._life.cancel()
        else:
            self._leave_by = self._house.owner.now() + PART_S
            self.parting.set()

    def stay(self) -> bool:
        """The stage is assigned to us again; False: it is given up already."""
        if self._life.cancel_called:
            return False
        if self._leave_by is None:
            return True
        self._leave_by = self._told_by = None
        self._house.memory_budget.set_leaving(self.stage, False)
        if self.driver is not None:
            self.driver.seat.departure.cancel()
            self._announced = False
            self._seat_changed()
        return True

    def begin_anew(self) -> None:
        """The swarm begins a new lineage: take the stage from its beginning."""
        self._beginning = self.driver is not None or self._beginning
        self._view = SwarmView(((),) * len(self._view.stages))
        self._retake.set()

    def allow_training(self) -> None:
        """The swarm has started."""
        self._allowed = True
        if self.driver is not None:
            self.driver.allow_training()

    def set_threads(self, threads: int) -> None:
        """Compute with so many threads from the next task on."""
        if self.worker is not None:
            with suppress(WorkerDied):  # then the next one is told when it opens the stage
                self.worker.submit(SetThreads(threads=threads))

    def update_view(self, view: SwarmView) -> None:
        """Take a new view of the swarm."""
        ending = is_ending(view) and not is_ending(self._view)
        self._view = view
        if self.driver is not None:
            self.driver.update_view(view)
        if ending and self.driver and self.saver and self.driver.seat.serving:
            self.saver.checkpoint(self.driver.seat.step)
        if self._taking is not None:
            self._taking.view_changed()

    def peer_lost(self, peer: PeerId) -> None:
        """A peer is gone."""
        if self._taking is not None:
            self._taking.peer_lost(peer)

    def receive(self, peer: PeerId, message: Message, payload: bytes) -> None:
        """Take a message to this stage's seat or to the attempt to get it."""
        if self._taking is not None and self._taking.receive(peer, message, payload):
            return
        if self.driver is not None:
            self.driver.receive(peer, message, payload)

    def tick(self, now: float) -> None:
        """Let the seat act on its deadlines; end a departure that takes too long."""
        if self._leave_by is not None and self._leave_by <= now:
            self.part()
        if self._told_by is not None and self._told_by <= now:
            self._told_by = None
            self._has_left()
        deadline = self.driver.seat.next_deadline() if self.driver else None
        if self.driver is not None and deadline is not None and deadline <= now:
            self.driver.tick()

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        seat = self.driver.seat.next_deadline() if self.driver else None
        deadlines = (seat, self._leave_by, self._told_by)
        return min((d for d in deadlines if d is not None), default=None)

    def status(self) -> SeatStatus | None:
        """Return what heartbeats say of our seat."""
        if self.driver is None:
            return self._returning() if self._beginning else None
        if not self.leaving:  # then the matching knows it no more
            self._seat_number = self._house.owner.seat_of(self.stage)
        status = self.driver.seat.status(self.driver.rate())
        return msgspec.structs.replace(status, seat=self._seat_number)

    def _returning(self) -> SeatStatus:
        """What is said of a seat that is coming back: the stage is ours as it was."""
        lineage = self._house.terms.history.lineage
        return SeatStatus(
            self.stage, lineage.version, "fetching", 0, b"", 0, 0.0, self._seat_number, lineage.era
        )

    async def save(self) -> None:
        """Write a last checkpoint of a serving seat and wait until it is on disk."""
        driver, saver = self.driver, self.saver
        if driver is not None and saver is not None and driver.seat.serving:
            await saver.final(lambda: driver.seat.step)

    # --- running -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Hold the stage until it is given up.

        Raises:
            UserError: it cannot be held at all.
        """
        house = self._house
        try:
            with self._life:
                self._fit = await house.memory_budget.take(self.stage)
                while True:
                    await self._hold()
        finally:
            house.memory_budget.release(self.stage)

    async def _hold(self) -> None:
        """Hold the stage with one worker until the worker dies."""
        try:
            async with self._house.workers.lend() as worker:
                self.worker = worker
                while True:
                    await self._serve(worker)
                    await self._still_answers(worker)
        except WorkerDied as death:
            self._worker_died(death)
        except OSError as error:
            raise UserError(f"no compute worker can be started: {error}") from error
        finally:
            self.worker = None

    async def _serve(self, worker: Worker) -> None:
        """Take the stage and serve it until it has to be taken anew."""
        self._retake, self._failure = trio.Event(), None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._take, worker, nursery)
                try:
                    await self._retake.wait()
                finally:  # before the nursery closes, for the seat starts tasks in it
                    self._close_seat()
                nursery.cancel_scope.cancel()
        finally:
            self._taking = None
        if self._failure is not None:
            raise self._failure

    async def _still_answers(self, worker: Worker) -> None:
        """Wait until a worker has done what the seat before gave it.

        Raises:
            WorkerDied: it hangs: the seat was lost before that was noticed.
        """
        busy_s = max(0.0, self._answers_by - self._house.owner.now())
        try:
            with trio.fail_after(busy_s + AT_LEAST_S):
                await worker.call(SetThreads(threads=self._house.terms.cores.threads))
        except trio.TooSlowError:
            words = f"it had not answered for {busy_s + AT_LEAST_S:.0f} s"
            raise WorkerDied(-signal.SIGKILL, (words,)) from None

    async def _take(self, worker: Worker, nursery: trio.Nursery) -> None:
        """One attempt to serve the stage; ends when the seat stands, whose tasks go on."""
        taking = self._taking = Taking(self._house.terms, self.stage, worker, lambda: self._view)
        try:
            size = await taking.open(self._fit.graphs if self._fit else 0)
            if await taking.must_join():
                admit = await taking.admission()
                seat = self._new_seat(size, admit.version, admit.era, serving=False)
                seat.quorum.settle(admit.roll, admit.electors, self._house.owner.now())
                self._sit(worker, seat, nursery)
                await taking.load(admit)
                if self.driver is not None:
                    self.driver.state_loaded()
            else:
                lineage = await taking.begin()
                seat = self._new_seat(size, lineage.version, lineage.era, serving=True)
                self._sit(worker, seat, nursery)
        except (DownloadFailed, RequestFailed, OSError) as error:
            words = f"stage {self.stage}: {error}; trying again"
            self._house.owner.perform(Explain("transfer", words, "warning"))
            await trio.sleep(RETRY_S)
            self._retake.set()
        except (WorkerDied, UserError) as error:
            self._fail(error)

    # --- the seat ----------------------------------------------------------------------------

    def _new_seat(self, size: int, version: int, era: int, *, serving: bool) -> Seat:
        terms, manifest = self._house.terms, self._house.terms.manifest
        return Seat(
            Place(terms.me, self.stage, manifest.stage_count, manifest.microbatches_per_step),
            size=size,
            steps=manifest.steps,
            tokens_per_step=manifest.tokens_per_microbatch * manifest.microbatches_per_step,
            step=version,
            serving=serving,
            era=era,
            touch=terms.history.touch,
            vow=self._vow[1] if self._vow[0] == era else (0, 0),
            delayed=manifest.delayed,
        )

    def _sit(self, worker: Worker, seat: Seat, nursery: trio.Nursery) -> None:
        """Open the seat: from now on messages and the view reach it."""
        if self._retake.is_set() or self._life.cancel_called:
            return  # to be taken anew, or not at all
        house, terms, settings = self._house, self._house.terms, self._house.terms.settings
        self.saver = StateSaver(
            worker,
            self.stage,
            checkpoint_folder(terms.folders.checkpoints, settings),
            terms.folders.snapshots,
            terms.shelf,
            house.owner,
            nursery,
            terms.history.protected,
            terms.history.stored,
        )
        store = BoundaryStore(settings.boundary_memory_bytes, settings.boundary_disk_bytes)
        self.driver = SeatDriver(
            seat,
            terms.manifest,
            worker,
            Payloads(store),
            house.owner,
            self._hooks(),
            nursery,
            house.scheduler,
        )
        self._announced = self._beginning = False
        self._seat_changed()
        if self._allowed:
            self.driver.allow_training()
        self.driver.update_view(self._view)

    def _hooks(self) -> SeatHooks:
        return SeatHooks(
            changed=self._seat_changed,
            committed=self._committed,
            rerouted=self._house.counters.note_rerouted,
            accepted=self._house.counters.note_accepted,
            snapshot=self._snapshot,
            fault=self._fault,
            worker_died=self._fail,
            left=self._has_left,
        )

    def _has_left(self) -> None:
        """Go on with the departure once nobody needs the seat and everybody knows of it."""
        complete = self.driver is not None and self.driver.seat.departure.complete
        parting = self.parting is not None and self.parting.is_set()
        if complete and self._told_by is None and not parting:
            self.part()

    def _close_seat(self) -> None:
        if self.driver is None:
            return
        self._house.counters.miscounted += self.driver.miscounted
        self._house.counters.restarts.update(self.driver.seat.leader.restarts)
        self._vow = (self.driver.seat.era, self.driver.seat.member.vow)
        self._answers_by = self.driver.answers_by
        self.driver.close()
        self.driver = self.saver = None
        if self.leaving:
            self._life.cancel()
        self._house.owner.seats_changed()

    # --- what the seat tells us --------------------------------------------------------------

    def _seat_changed(self) -> None:
        if self.driver is None:
            return
        self._house.owner.seats_changed()
        if self.driver.seat.serving and not self._announced:
            self._announced = True
            self._house.owner.serving(self.stage)
            if self._house.memory_budget.has_room():
                self._house.workers.warm()  # the next assignment does not wait for a process

    def _committed(self, committed: Committed) -> None:
        era = self.driver.seat.era if self.driver is not None else 0
        self._house.counters.note_committed(committed, era)
        self._house.terms.history.closed(committed, era)
        self._house.owner.stage_closed(committed)
        manifest = self._house.terms.manifest
        due = committed.version % manifest.policy.checkpoint_every == 0 or is_ending(self._view)
        if self.saver is not None and (due or committed.version >= manifest.steps):
            self.saver.checkpoint(committed.version)

    def _snapshot(self, snapshot: Snapshot) -> None:
        if self.saver is not None:
            self.saver.snapshot(snapshot.version)

    def _fault(self, fault: Fault) -> None:
        if fault.kind == "diverged" and self._diverged:
            self._fail(Diverged(f"training diverged on our own samples: {fault.words}", DIVERGED))
            return
        self._diverged |= fault.kind == "diverged"
        if fault.kind == "memory":
            self._fail(UserError(fault.words, NO_MEMORY, ExitCode.CONFIG))
            return
        if fault.kind in ("behind", "poisoned", "diverged"):  # another state is what is needed
            self._house.terms.history.reopened(self.stage)
        words = f"{fault.words}; taking the stage anew"
        self._house.owner.perform(Explain("round", words, "warning"))
        self._retake.set()

    def _fail(self, failure: UserError | WorkerDied) -> None:
        """Unwind to ``run`` or beyond."""
        self._failure = self._failure or failure
        self._retake.set()

    def _worker_died(self, death: WorkerDied) -> None:
        self.worker_restarts += 1
        self._house.counters.worker_restarts += 1
        if self.worker_restarts > MAX_WORKER_RESTARTS:
            words = f"the compute worker died {self.worker_restarts} times"
            raise UserError(words, "see the log; fewer --threads may help")
        words = f"{death}; starting it again"
        self._house.terms.event_sink.recovery(words, "worker", "detected")
