"""The part of a node that trains: its stages, their workers, and the copies it keeps for others.

It runs while the node may hold stages. A pause drains every stage, like leaving the swarm, and ends
the worker processes, which frees their memory; the network, the membership and the control socket
stay. Resuming enters the swarm again with the same identity.
"""

from contextlib import suppress

import trio

from client.compute.process import RequestFailed, WorkerDied
from client.compute.requests import Probed
from client.config import Settings
from client.errors import ExitCode, UserError
from client.limits.cores import find_cores
from client.train.machine.capacity import advert, measured_capacity
from client.train.machine.disk_room import NoRoom
from client.train.machine.pausing import Pauses
from client.train.stage.held_stages import HeldStages
from client.train.stage.stage_acquisition import sweep_copies
from client.train.transfer.inventory import offer_stored
from client.train.workers.opening import bytes_to_advertise
from protocol.effects import Explain

USUAL_SEATS = 2
"""The home and a second stage; the matching checks whether memory holds both."""
CLOCK_S = 1.0
"""Between two looks whether a clock that was wrong is right."""
MEASURING_WORKERS = 4
"""Deaths after which a restart is not expected to help."""


class Training:
    """See the module's docstring."""

    def __init__(self, held_stages: HeldStages, pauses: Pauses) -> None:
        self.held_stages, self._engine, self._pauses = held_stages, held_stages.engine, pauses
        self._leaving = trio.Lock()
        self._over = False
        self.phase = "measuring this machine"
        """What has to be done before the swarm is entered, in words."""
        self._engine.held_stages, held_stages.pause = held_stages, self._pause

    async def run(self) -> None:
        """Train whenever the node may, until cancelled."""
        checkpoints = self.held_stages.checkpoints
        sweep_copies(self.held_stages.snapshots, self.held_stages.history.lineage.version)
        with suppress(OSError):
            checkpoints.sweep()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(offer_stored, checkpoints, self._engine.shelf, self._engine)
            while True:
                await self._pauses.wait_clear()
                if self._over:
                    await trio.sleep_forever()
                await self._train()

    async def drain(self, *, for_good: bool = False) -> None:
        """Hand over and save our stages; nothing is held afterwards."""
        self._over = self._over or for_good
        held_stages = self.held_stages
        async with self._leaving:  # a pause may be at it already
            held_stages.save_when_drained()
            self._engine.drain()
            await held_stages.give_up_all()

    async def _train(self) -> None:
        """Hold stages until a pause begins; then drain them."""
        engine = self._engine
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.held_stages.run)
            nursery.start_soon(self.held_stages.buddies.run)
            nursery.start_soon(self._enter)
            await self._pauses.wait_paused()
            await self.drain()
            nursery.cancel_scope.cancel()
        self.held_stages.close()
        engine.offer_no_seats()

    async def _enter(self) -> None:
        """Measure this machine and enter the swarm with the result."""
        engine, data = self._engine, self.held_stages.data
        try:
            capacity, problem = await self._measured()
            if problem and self.held_stages.data_path is not None:
                next_step = "give --data the folder of the swarm's data, or leave it out"
                raise UserError(problem, next_step, ExitCode.CONFIG)
        except UserError as error:
            self.held_stages.failure = error
            return
        await self.clock_agrees()
        addresses = tuple(engine.own_advert.addresses())
        settings = self.held_stages.settings  # the owner may have changed limits meanwhile
        seats = settings.seats or USUAL_SEATS
        own = advert(
            settings,
            addresses,
            int(engine.wall()),
            data,
            flops=capacity.peak_flops(engine.manifest.compute),
            memory_bytes=self._memory_bytes(),
            seats=seats if engine.manifest.policy.dual_homing else 1,
        )
        engine.describe(own)
        await engine.own_advert.keep_current(lambda: self.held_stages.settings, data)

    async def clock_agrees(self) -> None:
        """Wait until this machine's clock and the members' agree, and say that we wait."""
        told = False
        while words := self._engine.compare_clocks():
            self.phase = words
            if not told:
                self._engine.perform(Explain("swarm", words, "error"))
            told = True
            await trio.sleep(CLOCK_S)
        if told:
            self._engine.perform(Explain("swarm", "the clocks agree now: taking part"))

    async def _measured(self) -> tuple[Probed, str]:
        """Return what was measured, and why the training data are not here; empty: they are. Raises
        UserError: this machine is too small for any stage, the device is unusable, or one worker
        after the other dies."""
        settings, data = self.held_stages.settings, self.held_stages.data
        check_threads(settings)
        for _ in range(MEASURING_WORKERS):
            try:
                worker = await self.held_stages.workers.wait_idle()
                threads = settings.threads or find_cores().usable
                found = await measured_capacity(worker, settings, data, threads)
                self.held_stages.capacity = found
                for kind, why in found.unused.items():
                    words = f"the GPU {kind} is not used: it cannot train here: {why}"
                    self._engine.perform(Explain("swarm", words, "warning"))
                self._memory_bytes()  # before it looks for data
                self.phase = "looking for the training data"
                return found, await self.held_stages.text_problem()
            except RequestFailed as failure:
                said = str(failure).removeprefix(f"{failure.kind}: ")
                words = f"this machine cannot be measured: {said}"
                next_step = "leave --device out, or use --device cpu"
                raise UserError(words, next_step, ExitCode.CONFIG) from failure
            except WorkerDied as death:
                self.held_stages.counting.seen.worker_restarts += 1
                self._engine.event_sink.worker_died(death)
            try:
                await self.held_stages.workers.renew_idle()
            except OSError as error:
                raise UserError(f"no compute worker can be started: {error}") from error
        words = f"the compute worker died {MEASURING_WORKERS} times while it measured this machine"
        raise UserError(words, "read volunteer logs; fewer --threads or another --device may help")

    def _memory_bytes(self) -> int:
        """Return the memory to advertise. Raises UserError: it is too little for any stage."""
        return bytes_to_advertise(self._engine.manifest, self.held_stages.devices())

    def _pause(self, why: UserError) -> None:
        if isinstance(why, NoRoom):
            words = f"{why}; training goes on when there is room"
            self._pauses.hold("disk", words, ends=why.is_over)
        else:
            self._pauses.pause(None, f"{why}; {why.next_step}")


def check_threads(settings: Settings) -> None:
    """Check that every part of the processor gets one of the threads that the owner allows. Raises
    UserError: there are more parts."""
    parts = len(settings.devices)
    if settings.device.startswith("cpu") and 0 < settings.threads < parts:
        words = f"{settings.device} are {parts} devices, and --threads is {settings.threads}"
        raise UserError(words, "raise --threads, or name fewer devices", ExitCode.CONFIG)
