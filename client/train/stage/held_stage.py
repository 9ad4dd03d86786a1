"""Drives one held stage: carries out the decisions of the machine of ``protocol.held_stage``.

Holds a worker process, the attempt to acquire the stage and the seat's driver. It reports their
events to the machine, which decides when the seat is closed and when the stage is acquired again,
drained, saved or given back. It knows nothing of other stages held here.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
import trio

from client.compute.memory import Fit
from client.compute.process import RequestFailed, Worker, WorkerDied
from client.compute.requests import Ping
from client.errors import ExitCode, UserError
from client.train.machine.disk_room import NoRoom
from client.train.ports import Take
from client.train.stage.seat_driver import SeatDriver
from client.train.stage.stage_acquisition import StageAcquisition
from client.train.stage.stage_context import StageContext
from client.train.transfer.blobs import DiskFailed, DownloadFailed
from client.train.workers.patience import AT_LEAST_S
from model_zoo.specs.codec import CODECS
from model_zoo.specs.slices import stage_parameters
from protocol.effects import Explain
from protocol.held_stage.acquisition import Join
from protocol.held_stage.machine import Do, HeldStage, Phase, State
from protocol.ids import PeerId
from protocol.pace import LOOK_S
from protocol.pipeline.effects import Fault
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.seat.seat import Seat
from protocol.wire.messages import Admit, Message
from protocol.wire.parts import SeatStatus

RETRY_S = 2.0
MAX_WORKER_RESTARTS = 5
"""Restarts for one stage; a worker that dies more often has a fault that a restart does not
cure."""
UNSAVED_S = 5.0
"""Seconds after which a disk that has not taken the last checkpoint is tried again."""
WHEN_UNSAVED = "free space; volunteer finish --discard leaves anyway"
NO_MEMORY = "close other programs, use --device cpu, or join a swarm with shorter sequences"

DIVERGED = (
    "resume to try again from a checkpoint; if it happens again, found a swarm with a lower "
    "learning rate"
)


class Diverged(UserError):
    """Training has diverged here repeatedly without tensors of others: the node pauses, not
    ends."""


class HeldStageDriver:
    """See the module's docstring; ``run`` is its life."""

    def __init__(self, context: StageContext, stage: int) -> None:
        self._context, self.stage = context, stage
        self.machine = HeldStage(stage, context.engine.now())
        self.worker: Worker | None = None
        self.worker_restarts = 0
        self.driver: SeatDriver | None = None
        self._fit = Fit(0, 0)
        self._acquisition: StageAcquisition | None = None
        self._answers_by = -math.inf
        """Until when the worker has to have answered what the seat before gave it."""
        self._diverged = False
        """Our own samples have made numbers run away before, in a state that was given up then."""
        self._seat_number = 0
        self._seat_ticks_at = 0.0
        self._promise = (0, (0, 0))
        """Era and promise of our last seat: what it sent for that attempt may still arrive."""
        self._failure: UserError | WorkerDied | None = None
        self._retake = trio.Event()
        self._life = trio.CancelScope()
        self.lost = ""
        """What went with the stage that nobody has, in words; empty: nothing."""
        self._seat_nursery: trio.Nursery | None = None
        self._copy: Callable[[int], Awaitable[None]] | None = None
        """Has a neighbour keep a copy of the version that was saved last."""

    @property
    def phase(self) -> str:
        """Describe in words what is being done."""
        follows = self.machine.state in (State.OBSERVING, State.SERVING)
        if follows and self.driver is not None and self.driver.seat.member.loaded:
            return self.driver.seat.why()
        return self.machine.waits_for

    # --- input of ``HeldStages`` ---------------------------------------------------------------

    def assign(self) -> None:
        """The matching gives us the stage, perhaps while it is being given up."""
        self._perform(self.machine.assign(self._context.engine.now()))

    def drain(self) -> None:
        """Give the stage up: at once if nothing is lost by it, else when the step is closed."""
        self._perform(self.machine.drain(self._context.engine.now()))

    def save_when_drained(self, copy: Callable[[int], Awaitable[None]] | None) -> None:
        """Write a last checkpoint before the stage is given up.

        Args:
            copy: has a neighbour keep a copy of that version; None: others have the state.
        """
        self._copy = copy
        self.machine.leaves = True

    def at_stake(self) -> int | None:
        """Return the version of which nobody else has a copy, and no disk; None: none is."""
        return None if self.driver is None else self.driver.at_stake()

    def stand_still(self) -> None:
        """No step closes any more, because a stage of the swarm is empty."""
        self._perform(self.machine.stand_still(self._context.engine.now()))

    def begin_anew(self) -> None:
        """The swarm begins a new lineage: take the stage from its beginning. An attempt that does
        not know yet where the run stands goes on, with the next view."""
        self._context.engine.seats_changed()
        attempt = self._acquisition
        if self.machine.state is State.ACQUIRING and not (attempt and attempt.knows_where):
            return
        self._perform(self.machine.begin_anew(self._context.engine.now()))

    def taker(self, message: Message) -> Take | None:
        """Return who takes a message to this stage: its seat, or the attempt to get one."""
        if isinstance(message, Admit) and message.joiner == self._context.engine.me:
            return None if self._acquisition is None else self._acquisition.admit
        return None if self.driver is None else self.driver.receive

    def tick(self, now: float) -> None:
        """Handle deadlines of the stage and its seat that have passed."""
        self.look()
        if self.driver is not None and now >= self._seat_ticks_at:
            self._seat_ticks_at = now + LOOK_S
            self.driver.tell(self.driver.seat.tick)

    def status(self) -> SeatStatus | None:
        """Return what heartbeats say of our seat."""
        if self.driver is None:
            return self._returning() if self.machine.returning else None
        if not self.machine.drains:  # then the matching no longer knows it
            self._seat_number = self._context.engine.seat_of(self.stage)
        status = self.driver.seat.status(self.driver.rate())
        return msgspec.structs.replace(status, seat=self._seat_number)

    def _returning(self) -> SeatStatus:
        """The record of a seat that is coming back: the stage stays ours."""
        lineage = self._context.history.lineage
        return SeatStatus(
            self.stage, lineage.version, "fetching", 0, 0.0, self._seat_number, lineage.era
        )

    # --- effects of the machine ---------------------------------------------------------------

    def _perform(self, effects: tuple[Do, ...]) -> None:
        for effect in effects:
            match effect:
                case Do.RETAKE | Do.REPORT:
                    self._close_seat()
                    self._retake.set()
                case Do.ANNOUNCE:
                    self._announce()
                case Do.DRAIN:
                    self._drain()
                case Do.KEEP:
                    self._keep()
                case Do.SAVE if self._seat_nursery is not None:
                    self._seat_nursery.start_soon(self._save)
                case Do.RELEASE:
                    self._release()

    def _announce(self) -> None:
        self._context.engine.serving(self.stage)
        if self._context.memory_budget.has_room():
            self._context.workers.warm()  # the next assignment does not wait for a process

    def _drain(self) -> None:
        if self.driver is not None:
            self.driver.tell(self.driver.seat.drain)
        self._context.engine.seats_changed()

    def _keep(self) -> None:
        self._context.memory_budget.look()
        if self.driver is not None:
            self.driver.seat.stay()
        self._context.engine.seats_changed()

    def _release(self) -> None:
        driver = self.driver
        if self.machine.leaves and driver and (version := driver.at_stake()) is not None:
            why = driver.saver.problem or "it was not written in time"
            self.lost = f"version {version} of stage {self.stage} could not be saved: {why}"
            self._context.engine.perform(Explain("transfer", self.lost, "error"))
        self._close_seat()
        self._life.cancel()

    async def _save(self) -> None:
        """Write a last checkpoint and wait until it is on disk, and at a neighbour's.

        One that the disk does not take is written when it does, if nobody else has the state.
        """
        driver = self.driver
        try:
            if driver is None:
                return
            saver = driver.saver
            await saver.final()
            let_go = self._context.let_go
            while saver.problem and self.at_stake() is not None and not let_go.is_set():
                self._say_unsaved(saver.problem)
                with trio.move_on_after(UNSAVED_S):
                    await let_go.wait()
                await saver.final()
            if saver.problem:
                self._say_safe(driver.seat.step, saver.problem)
            elif self._copy is not None and saver.saved_version > 0:
                self.machine.copies()
                await self._copy(saver.saved_version)
        finally:
            self._perform(self.machine.release(self._context.engine.now()))

    def _say_unsaved(self, problem: str) -> None:
        if not self.machine.keeps:
            words = f"stage {self.stage} stays in memory, because nobody else has it: {problem}"
            self._context.engine.perform(Explain("transfer", words, "error"))
        self.machine.cannot_save(f"{problem}; {WHEN_UNSAVED}")

    def _say_safe(self, version: int, problem: str) -> None:
        if self.at_stake() is None:
            words = f"stage {self.stage} is left without a checkpoint of version {version}: "
            words += f"{problem}; others have it, so nothing is lost"
            self._context.engine.perform(Explain("transfer", words, "warning"))

    # --- running -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Hold the stage until it is given up.

        Raises:
            UserError: it cannot be held at all.
        """
        context = self._context
        try:
            with self._life:
                self._fit = await context.memory_budget.take(self.stage)
                while True:
                    await self._hold()
        except UserError:
            self._perform(self.machine.fail(context.engine.now()))
            raise
        finally:
            context.memory_budget.release(self.stage)

    async def _hold(self) -> None:
        """Hold the stage with one worker until the worker dies."""
        self._waits(Phase.WORKER)
        try:
            async with self._context.workers.lend() as worker:
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
        """Take the stage and serve it until it has to be taken again."""
        self._retake, self._failure = trio.Event(), None
        try:
            async with trio.open_nursery() as nursery:
                self._seat_nursery = nursery
                nursery.start_soon(self._take, worker, nursery)
                try:
                    await self._retake.wait()
                finally:  # before the nursery closes, for the seat starts tasks in it
                    self._close_seat()
                nursery.cancel_scope.cancel()
        finally:
            self._acquisition = self._seat_nursery = None
            if self.stage == 0:
                self._context.leaves.rest()
        if self._failure is not None:
            raise self._failure

    async def _still_answers(self, worker: Worker) -> None:
        """Wait until the worker has finished the tasks of the previous seat.

        Raises:
            WorkerDied: it hangs: the seat was lost before that was noticed.
        """
        self._waits(Phase.WORKER)
        busy_s = max(0.0, self._answers_by - self._context.engine.now())
        await worker.call(Ping(), busy_s + AT_LEAST_S)

    async def _take(self, worker: Worker, nursery: trio.Nursery) -> None:
        """One attempt to serve the stage; ends when the seat stands, whose tasks go on."""
        context = self._context
        acquisition = StageAcquisition(context, self.stage, worker, self._waits)
        self._acquisition = acquisition
        try:
            await acquisition.open(self._fit)
            way = await acquisition.way_in()
            if isinstance(way, Join):
                admit = await acquisition.admission()
                seat = self._new_seat(admit.version, admit.era, serving=False)
                seat.admitted_by(admit, self._context.engine.now())
                self._sit(worker, seat, nursery)
                await acquisition.load(admit)
                if self.driver is not None:
                    self.driver.tell(self.driver.seat.state_loaded)
            else:
                lineage = way.lineage
                await acquisition.begin(lineage)
                seat = self._new_seat(lineage.version, lineage.era, serving=True)
                self._sit(worker, seat, nursery)
        except (DownloadFailed, RequestFailed, OSError) as error:
            if isinstance(error, DiskFailed) and error.needed_bytes:
                folder = self._context.snapshots.parent
                self._fail(NoRoom(str(error), folder, error.needed_bytes))
                return
            words = f"stage {self.stage}: {error}; trying again"
            self._context.engine.perform(Explain("transfer", words, "warning"))
            self._waits(Phase.RETRY)
            await trio.sleep(RETRY_S)
            self._lose()
        except WorkerDied as death:
            self.worker_lost(death)
        except UserError as error:
            self._fail(error)

    def _waits(self, phase: Phase, words: str = "") -> None:
        """The way into the stage has reached a phase."""
        self.machine.waits(phase, self._context.engine.now(), words)

    # --- the seat ----------------------------------------------------------------------------

    def _new_seat(self, version: int, era: int, *, serving: bool) -> Seat:
        context, engine = self._context, self._context.engine
        manifest, history = engine.manifest, context.history
        kept = self._promise[1] if self._promise[0] == era else (0, 0)
        return Seat(
            Place(
                engine.me,
                self.stage,
                manifest.stage_count,
                manifest.microbatches_per_step,
                manifest.tokens_everywhere,
                era,
            ),
            size=stage_parameters(manifest.model, manifest.layers_per_stage, self.stage),
            tokens_per_step=manifest.tokens_per_step,
            step=version,
            serving=serving,
            quorum=Quorum(
                engine.me,
                self.stage,
                engine.membership.contacts,
                history.machine.known.has_left,
                list(map(PeerId, history.lineage.electors)),
            ),
            elector=engine.notary.elector,
            promise=max(kept, engine.notary.promised(self.stage, era, version)),
            proves=history.proves,
            audits=context.audits,
            evaluation=manifest.evaluation,
            amendments=engine.amendments,
            at_once=len(context.settings.devices),
            number_bytes=CODECS[manifest.averaging_codec].bytes_per_number,
        )

    def _sit(self, worker: Worker, seat: Seat, nursery: trio.Nursery) -> None:
        """Open the seat: from now on messages and the view reach it."""
        if self._retake.is_set() or self.machine.state is not State.ACQUIRING:
            return  # to be acquired again, or given up
        owner = self._context.engine
        driver = self.driver = SeatDriver(self._context, self, seat, worker, nursery)
        owner.seats_changed()
        self._perform(self.machine.opened(owner.now(), serving=seat.serving))
        driver.update_view(self._context.view)

    def look(self) -> None:
        """Continue draining and saving, if it is time."""
        if self._context.let_go.is_set():
            self.machine.let_go()
        engine = self._context.engine
        now, contacts = engine.now(), engine.membership.contacts
        complete = self.driver is not None and self.driver.seat.drained
        drained = complete and contacts.all_know(self.machine.since, now)
        self._perform(self.machine.look(now, drained=drained))

    def _close_seat(self) -> None:
        if self.driver is None:
            return
        led = Counter(self._context.counting.seen.restarts_led) + self.driver.seat.leader.restarts
        self._context.counting.seen.restarts_led = led
        self._promise = (self.driver.seat.place.era, self.driver.seat.member.promise)
        self._answers_by = self.driver.answers_by
        self.driver.close()
        self.driver = None
        self._context.engine.seats_changed()

    # --- input of the seat --------------------------------------------------------------

    def seat_changed(self) -> None:
        """See ``SeatOwner``."""
        self._context.engine.seats_changed()
        if self.driver is not None and self.driver.seat.serving:
            self._perform(self.machine.serves(self._context.engine.now()))

    def fault(self, fault: Fault) -> None:
        """The seat cannot go on: take the stage again, or give it up."""
        if fault.kind == "diverged" and self._diverged:
            self._fail(Diverged(f"training diverged on our own samples: {fault.words}", DIVERGED))
            return
        self._diverged |= fault.kind == "diverged"
        if fault.kind == "memory":
            self._fail(UserError(fault.words, NO_MEMORY, ExitCode.CONFIG))
            return
        if fault.kind == "differs":
            self._note_who_misled_us()
        if fault.kind in ("behind", "differs"):
            self._context.history.machine.known.left_behind(self.stage)
        if fault.kind in ("poisoned", "diverged"):  # a new state is needed
            self._context.history.machine.evidence.reopened(self.stage)
        words = fault.words if self.machine.drains else f"{fault.words}; fetching the stage again"
        self._context.engine.perform(Explain("round", words, "warning"))
        self._lose()

    def _note_who_misled_us(self) -> None:
        """Most of those that made our version have another state of it: if we have gone no further
        since we were admitted, that state was a false one."""
        acquisition, driver = self._acquisition, self.driver
        if acquisition is not None and driver is not None and acquisition.admitted is not None:
            by, version = acquisition.admitted
            if driver.seat.step == version:
                self._context.history.machine.evidence.misled(by)

    def _lose(self) -> None:
        """The attempt or its seat is lost."""
        self._perform(self.machine.lose(self._context.engine.now()))

    def worker_lost(self, death: WorkerDied) -> None:
        """The worker is to be replaced."""
        self._failure = self._failure or death
        self._lose()

    def _fail(self, failure: UserError) -> None:
        """The stage cannot be held: unwind to ``run`` or beyond."""
        self._failure = self._failure or failure
        self._perform(self.machine.fail(self._context.engine.now()))

    def _worker_died(self, death: WorkerDied) -> None:
        self.worker_restarts += 1
        self._context.counting.seen.worker_restarts += 1
        if self.worker_restarts > MAX_WORKER_RESTARTS:
            words = f"the compute worker died {self.worker_restarts} times"
            raise UserError(words, "read volunteer logs; fewer --threads may help")
        self._context.engine.event_sink.worker_died(death)
