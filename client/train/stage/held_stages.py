"""A volunteer's stages: opened and given up as the matching says, up to three at a time.

Holds a driver for each stage and hands it what concerns the stage. The matching is told of a stage
that cannot be held; only if it was the last one the node fails.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import trio

from client.compute.process import Worker, open_worker
from client.errors import UserError
from client.store.checkpoints import CheckpointFolder
from client.train.machine.disk_room import Lack
from client.train.machine.memory_budget import MemoryBudget
from client.train.machine.time_spent import TimeSpent
from client.train.ports import Copied, StageHolder, Take
from client.train.recovery.buddies import Buddies
from client.train.reporting.audit_log import AuditLog
from client.train.reporting.counters import Counters
from client.train.stage.held_stage import Diverged, HeldStageDriver, NoRoom
from client.train.stage.seat_driver import SeatDriver
from client.train.stage.stage_acquisition import (
    DataMissing,
    Terms,
    offer_data,
    offer_start,
)
from client.train.stage.stage_context import Owner, StageContext
from client.train.transfer.state_size import data_bytes
from client.train.workers.pool import OpenWorker, WorkerPool
from client.train.workers.task_scheduler import TaskScheduler
from model_zoo.specs.codec import CODECS
from protocol.audit.charges import Charges
from protocol.audit.draw import SECRET_BYTES
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain
from protocol.ids import PeerId, SwarmId
from protocol.manifest import Manifest
from protocol.recovery.effects import GivenUp
from protocol.recovery.stored import Lineage
from protocol.view import SwarmView
from protocol.wire.messages import Message
from protocol.wire.parts import SeatStatus


class HeldStages(StageHolder):
    """See the module's docstring."""

    def __init__(
        self,
        owner: Owner,
        terms: Terms,
        start_worker: OpenWorker = open_worker,
        counters: Counters | None = None,
        audit_log: AuditLog | None = None,
    ) -> None:
        stages = terms.manifest.stage_count
        super().__init__(stages)
        self.newest = [0] * stages
        """Newest version ever seen served, by stage."""
        self.failure: UserError | None = None
        """Why this volunteer cannot go on at all."""
        self.pause: Callable[[str], object] = lambda reason: None
        """Has everything given up until the user resumes, with the reason."""
        self.lacks_room: Callable[[Lack], object] = lambda lack: None
        """Has everything given up until the disk has room."""
        self.held: dict[int, HeldStageDriver] = {}
        """What is held, the oldest first."""
        self.workers = WorkerPool(start_worker)
        self.counters = counters or Counters(owner, terms.event_sink)
        self.audit_log = audit_log or AuditLog()
        self.time_spent = TimeSpent(terms.settings.compute_share)
        self.lost: list[str] = []
        """What went with stages that were given up and nobody has."""
        self.closed = False
        """It has held its last stage; another will hold the next."""
        self.buddies: Buddies | None = None
        """Whoever keeps copies of other stages' checkpoints."""
        memory_budget = MemoryBudget(
            terms.manifest,
            terms.usable_bytes,
            terms.devices,
        )
        self.audits = _audits_of(terms.manifest, SwarmId(terms.swarm))
        """None: the run has no audits."""
        self._context = StageContext(
            owner,
            self,
            terms,
            self.workers,
            TaskScheduler(terms.settings.ranks),
            self.time_spent,
            memory_budget,
            self.counters,
            self.audit_log,
            self.audits,
        )
        self._opened, self._to_open = trio.open_memory_channel[HeldStageDriver](math.inf)

    @property
    def phase(self) -> str:
        """Describe in words what is being done."""
        phases = [held.phase for held in self.held.values()]
        return "; ".join(phases) or "waiting for a stage"

    @property
    def draining_words(self) -> str:
        """Describe how far the stages are drained."""
        drained = (held.machine.waits_for for held in self.held.values() if held.machine.drains)
        return "; ".join(drained) or ("draining" if self.held else "saying goodbye")

    @property
    def keeps(self) -> bool:
        """Whether a state stays in memory because it cannot be saved, and nobody else has it."""
        return any(held.machine.keeps for held in self.held.values())

    def let_go(self) -> None:
        """Give the stages up also if their last checkpoints cannot be written."""
        for held in self._all():
            held.let_go()

    def not_to_be_saved(self, folder: CheckpointFolder) -> str:
        """Say which states would be lost because the disk does not take them; empty: none would.

        Args:
            folder: where they would be saved.
        """
        at_stake = {held.stage: at for held in self._all() if (at := held.at_stake()) is not None}
        manifest = self._context.terms.manifest
        problem = folder.problem(sum(data_bytes(manifest, stage) for stage in at_stake))
        if not at_stake or not problem:
            return ""
        what = ", ".join(f"version {at} of stage {stage}" for stage, at in at_stake.items())
        return f"cannot save {what}, which nobody else has: {problem}"

    # --- input of the engine ------------------------------------------------------------

    def assign(self, stage: int) -> None:
        """The matching gives us a stage, besides those we hold."""
        if (held := self.held.get(stage)) is not None:
            held.assign()
            return
        held = self.held[stage] = HeldStageDriver(self._context, stage)
        self._opened.send_nowait(held)

    def drain(self, stage: int, reason: str) -> None:
        """The matching takes a stage away; the microbatches that its seat has counted still
        count."""
        if (held := self.held.get(stage)) is not None:
            held.drain()

    def allow_training(self) -> None:
        """The swarm has started."""
        self.allowed = True
        for held in self._all():
            held.allow_training()

    def amended(self) -> None:
        """There is a new amendment of the founder."""
        for held in self._all():
            held.amended()

    def update_view(self, view: SwarmView) -> None:
        """Take a new view of the swarm."""
        self.view, self.sees = view, True
        self.newest = [max(old, view.committed(s)) for s, old in enumerate(self.newest)]
        for held in self._all():
            held.update_view(view)

    def peer_lost(self, peer: PeerId) -> None:
        """A peer has left or was lost."""
        self._context.terms.history.line_fetch.copies.peer_lost(peer)
        if self.buddies is not None:
            self.buddies.copies.peer_lost(peer)
        self._context.terms.leaves.peer_lost(peer)
        for held in self._all():
            held.peer_lost(peer)

    def taker(self, message: Message) -> Take | None:
        """Return the handler of a message to a stage; None for a stage we do not hold."""
        stage = message.addressed_stage
        held = None if stage is None else self.held.get(stage)
        return None if held is None else held.taker(message)

    def copied(self, peer: PeerId, message: Copied, payload: bytes) -> None:
        """Pass a part of a blob to its download: the buddies, or an attempt to take a stage."""
        if self._context.terms.history.line_fetch.copies.receive(peer, message, payload):
            return
        copies = None if self.buddies is None or message.stage in self.held else self.buddies.copies
        if copies is not None and copies.receive(peer, message, payload):
            return
        if self._context.terms.leaves.receive(peer, message, payload):
            return
        if (held := self.held.get(message.stage)) is not None:
            held.copied(peer, message, payload)

    def begin_anew(self, lineage: Lineage, given_up: GivenUp | None = None) -> None:
        """Take every stage again from the beginning of this lineage, for which our line of the run
        may have been given up."""
        if given_up is not None:
            self._context.terms.event_sink.gave_up(given_up)
        else:
            self._context.terms.event_sink.rolled_back(lineage.version)
        self.view, self.sees = SwarmView(((),) * len(self.newest)), False
        self.newest = [lineage.version] * len(self.newest)
        for held in self._all():
            held.begin_anew()

    def has_quorum(self, now: float) -> bool:
        """Whether a majority of the electors of each of our seats is within reach."""
        return all(driver.seat.quorum.may_roll_back(now) for driver in self.drivers())

    def electors_ended(self) -> int:
        """See ``Restarts``."""
        return max((driver.seat.quorum.ended() for driver in self.drivers()), default=0)

    def save_now(self) -> None:
        """See ``Restarts``."""
        for held in self._all():
            held.save_now()

    def tick(self, now: float) -> None:
        """Handle deadlines of the seats that have passed."""
        for held in self._all():
            held.tick(now)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        deadlines = (held.next_deadline() for held in self._all())
        return min((d for d in deadlines if d is not None), default=None)

    def peak_flops(self) -> float:
        """Return what the device reaches in the run's type of numbers, FLOP/s; 0: not measured."""
        terms = self._context.terms
        return terms.capacity().peak_flops(terms.manifest.compute)

    def seats(self) -> list[SeatStatus]:
        """Return what heartbeats say of our seats."""
        statuses = (held.status() for held in self._all())
        return [status for status in statuses if status is not None]

    def drivers(self) -> list[SeatDriver]:
        """Return the drivers of the seats that are open."""
        drivers = (held.driver for held in self._all())
        return [driver for driver in drivers if driver is not None]

    # --- running -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the workers and hold whatever is assigned, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.workers.run)
            nursery.start_soon(self._offer_starts)
            nursery.start_soon(self._context.terms.leaves.run)
            async for held in self._to_open:
                nursery.start_soon(self._hold, held)

    def close(self) -> None:
        """Hold nothing any more: ``run`` has ended."""
        self.closed, self.buddies = True, None
        self.held.clear()  # one that was assigned too late to be opened

    async def worker_ready(self) -> Worker:
        """Wait for a compute worker that no stage has taken."""
        return await self.workers.wait_idle()

    async def text_problem(self) -> str:
        """Return why this machine lacks the swarm's training data; empty if it has them all. What
        is here is offered.

        A machine with the data can begin stage 0; others fetch them from it.
        """
        try:
            problem = await self._context.terms.leaves.open()
        except OSError as error:
            words = f"cannot read {error.filename}: {error.strerror}"
            raise UserError(words, "fix the permissions, or volunteer cache prune") from error
        if problem:
            self._context.owner.perform(Explain("transfer", problem))
        await offer_data(self._context.terms)
        return problem

    async def _offer_starts(self) -> None:
        """Let others copy what the stages of an imported model begin with, as far as it is here."""
        for stage, path in enumerate(self._context.terms.folders.starts):
            if path.exists():
                await offer_start(self._context.terms, stage)

    async def _hold(self, held: HeldStageDriver) -> None:
        failure: UserError | None = None
        try:
            await held.run()
        except UserError as error:
            failure = error
        finally:
            self.lost += filter(None, [held.lost])
            del self.held[held.stage]
            self._context.owner.seats_changed()
        if failure is not None:
            self._failed(held, failure)
        elif held.again:
            self.assign(held.stage)

    def _failed(self, held: HeldStageDriver, failure: UserError) -> None:
        if isinstance(failure, Diverged):
            self._context.owner.perform(Explain("round", str(failure), "error"))
            self.pause(f"{failure}; {failure.next_step}")
            return
        if not self.held and isinstance(failure, NoRoom):
            self.lacks_room(failure.lack)
            return
        if not self.held and not isinstance(failure, DataMissing):
            self.failure = failure
            return
        words = f"stage {held.stage} is given up: {failure}"
        self._context.owner.perform(Explain("transfer", words, "warning"))
        self._context.owner.lost(held.stage, str(failure))

    def _all(self) -> list[HeldStageDriver]:
        """The drivers; a list, because a call may end one."""
        return list(self.held.values())


def _audits_of(manifest: Manifest, swarm: SwarmId) -> AuditTerms | None:
    """Return what our audits go by; None: the run has none."""
    if not manifest.audits:
        return None
    coarse = not CODECS[manifest.averaging_codec].lossless
    mixed = manifest.compute != "fp32"
    secret, charges = os.urandom(SECRET_BYTES), Charges(swarm)
    return AuditTerms(manifest.audits, secret, coarse, charges, mixed=mixed)
