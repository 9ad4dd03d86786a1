"""A volunteer's stages: opened and given up as the matching says, up to three at a time.

Holds a driver for each stage and hands it what concerns the stage. The matching is told of a stage
that cannot be held; only if it was the last one the node fails. A volunteer that leaves drains
every stage: its seat hands its work over and closes the step it has counted for; then its worker
writes a last checkpoint.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from client.compute.process import Worker
from client.config import Settings
from client.errors import UserError
from client.train.engine import Engine
from client.train.machine.disk_room import NoRoom
from client.train.ports import Take
from client.train.recovery.buddies import Buddies
from client.train.stage.held_stage import Diverged, HeldStageDriver
from client.train.stage.seat_driver import SeatDriver
from client.train.stage.stage_acquisition import DataMissing, offer_data, offer_start
from client.train.stage.stage_context import StageContext
from client.train.transfer.state_size import data_bytes
from client.train.workers.pool import NewWorker
from protocol.effects import Explain
from protocol.recovery.effects import GivenUp
from protocol.recovery.stored import Lineage
from protocol.rounds.quorum import Quorum
from protocol.view import SwarmView
from protocol.wire.messages import Message
from protocol.wire.parts import SeatStatus

LOOK_S = 0.2
FINISH_S: Final = 240.0
"""For draining, saving, and a copy elsewhere; each of these is bounded, too."""
COPY_S = 60.0
"""Longest wait of a stage's last replica for its buddy's copy."""


class HeldStages(StageContext):
    """See the module's docstring; it is what its stages share."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        data: Path,
        data_path: Path | None = None,
        new_worker: NewWorker = Worker,
    ) -> None:
        super().__init__(engine, settings, data, data_path, new_worker)
        self.failure: UserError | None = None
        """Why this volunteer cannot go on at all."""
        self.pause: Callable[[Diverged | NoRoom], object] = lambda why: None
        """Has everything given up until the user resumes, or the disk has room."""
        self.held: dict[int, HeldStageDriver] = {}
        self.lost: list[str] = []
        """What went with stages that were given up and nobody has."""
        self.closed = True
        """Nothing can be held now: it does not run."""
        given = engine.shelf, engine.downloads, self.history, engine.membership.roster
        self.buddies = Buddies(engine, self.checkpoints, *given)
        """Keeps copies of other stages' checkpoints."""
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

    def save_when_drained(self) -> None:
        """Have the state of every stage saved; then the matching may take the stages away. The last
        replica of a stage has a neighbour keep a copy."""
        me = self.engine.me
        for stage, held in self.held.items():
            alone = me in self.view.replicas()[stage] and not self.view.staying(stage, me)
            held.save_when_drained(partial(self._leave_a_copy, stage) if alone else None)

    async def give_up_all(self) -> None:
        """Give up every stage, so that nobody has to recover anything; returns when none is held.

        It is bounded in time: if it is not finished after ``FINISH_S``, the others recover as after
        a crash. Only a state that would be lost because it cannot be saved is waited for.
        """
        latest = trio.current_time() + FINISH_S
        for held in self._all():
            held.drain()
        while self.held and (trio.current_time() <= latest or self.keeps):
            if self.view.empty_stages():
                for held in self._all():
                    held.stand_still()
            await trio.sleep(LOOK_S)

    async def _leave_a_copy(self, stage: int, version: int) -> None:
        kept = await self.buddies.hand_over(stage, version, COPY_S)
        where = "a neighbour keeps a copy" if kept else "only this machine's disk has it"
        words = f"left stage {stage} at version {version}: {where}"
        self.engine.perform(Explain("swarm", words, "info" if kept else "warning"))

    def not_to_be_saved(self) -> str:
        """Say which states would be lost because the disk does not take them; empty: none would."""
        at_stake = {held.stage: at for held in self._all() if (at := held.at_stake()) is not None}
        manifest = self.engine.manifest
        folder = self.checkpoints
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
        held = self.held[stage] = HeldStageDriver(self, stage)
        self._opened.send_nowait(held)

    def drain(self, stage: int) -> None:
        """The matching takes a stage away; the microbatches that its seat has counted still
        count."""
        if (held := self.held.get(stage)) is not None:
            held.drain()

    def update_view(self, view: SwarmView) -> None:
        """Take a new view of the swarm."""
        super().update_view(view)
        for driver in self.drivers():
            driver.update_view(view)

    def taker(self, message: Message) -> Take | None:
        """Return the handler of a message to a stage; None for a stage we do not hold."""
        stage = message.addressed_stage
        held = None if stage is None else self.held.get(stage)
        return None if held is None else held.taker(message)

    def begin_anew(self, lineage: Lineage, given_up: GivenUp | None) -> None:
        """Take every stage again from the beginning of this lineage, for which our line of the run
        may have been given up."""
        if given_up is not None:
            self.engine.event_sink.gave_up(given_up)
        else:
            self.engine.event_sink.rolled_back(lineage.version)
        self.view, self.sees = SwarmView(((),) * self.engine.manifest.stage_count), False
        for held in self._all():
            held.begin_anew()

    def quorums(self) -> list[Quorum]:
        """See ``StageHolder``."""
        return [driver.seat.quorum for driver in self.drivers()]

    def save_now(self) -> None:
        """See ``StageHolder``."""
        for driver in self.drivers():
            driver.save_now()

    def tick(self, now: float) -> None:
        """Handle deadlines of the stages and their seats; call it twice a second at least."""
        for held in self._all():
            held.tick(now)

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
        """Keep the workers and hold whatever is assigned, until cancelled; again after a pause."""
        self.closed = False
        self.lost.clear()
        self.let_go = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.workers.run)
            nursery.start_soon(self._offer_starts)
            nursery.start_soon(self.leaves.run)
            async for held in self._to_open:
                if self.held.get(held.stage) is held:
                    nursery.start_soon(self._hold, held)

    def close(self) -> None:
        """Hold nothing any more: ``run`` has ended."""
        self.closed = True
        self.held.clear()  # one that was assigned too late to be opened

    async def text_problem(self) -> str:
        """Return why this machine lacks the swarm's training data; empty if it has them all. What
        is here is offered.

        A machine with the data can begin stage 0; others fetch them from it.
        """
        try:
            problem = await self.leaves.open()
        except OSError as error:
            words = f"cannot read {error.filename}: {error.strerror}"
            raise UserError(words, "fix the permissions, or volunteer cache --prune") from error
        if problem:
            self.engine.perform(Explain("transfer", problem))
        await offer_data(self)
        return problem

    async def _offer_starts(self) -> None:
        """Let others copy what the stages of an imported model begin with, as far as it is here."""
        for stage in range(len(self.starts)):
            await offer_start(self, stage)

    async def _hold(self, held: HeldStageDriver) -> None:
        failure: UserError | None = None
        try:
            await held.run()
        except UserError as error:
            failure = error
        finally:
            self.lost += filter(None, [held.lost])
            del self.held[held.stage]
            self.engine.seats_changed()
        if failure is not None:
            self._failed(held, failure)
        elif held.machine.again:
            self.assign(held.stage)

    def _failed(self, held: HeldStageDriver, failure: UserError) -> None:
        if isinstance(failure, Diverged):
            self.engine.perform(Explain("round", str(failure), "error"))
            self.pause(failure)
            return
        if not self.held and isinstance(failure, NoRoom):
            self.pause(failure)
            return
        if not self.held and not isinstance(failure, DataMissing):
            self.failure = failure
            return
        words = f"stage {held.stage} is given up: {failure}"
        self.engine.perform(Explain("transfer", words, "warning"))
        self.engine.lost(held.stage, str(failure))

    def _all(self) -> list[HeldStageDriver]:
        """The drivers; a list, because a call may end one."""
        return list(self.held.values())
