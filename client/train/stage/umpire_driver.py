"""Drives an umpire's case: opens the version of another stage in a worker of its own.

A case has its own worker process and memory beside those of the stages that are held, and gives
both back when it is over. It decides nothing: the seat's umpire (``protocol/seat/umpire.py``) says
what is opened and computed, and is told what came of it.

State: the case that is open, with the payloads that were shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import trio

from client.compute.process import RequestFailed, Worker, WorkerDied
from client.compute.requests import KeepVersion
from client.errors import UserError
from client.train.ports import Copied
from client.train.stage.seat_driver import ERRORS
from client.train.stage.stage_acquisition import StageAcquisition
from client.train.stage.stage_context import StageContext
from client.train.transfer.blobs import DownloadFailed
from client.train.workers.tasks import Call, SeatConstants, to_call, to_outcome
from protocol.ids import PeerId
from protocol.pipeline.effects import Outcome, PayloadKey, RecomputeTask, WeighTask
from protocol.seat.effects import CaseEffect, CloseCase, JudgeTask, KeepShown, OpenCase
from protocol.view import SwarmView

Tasks = trio.MemoryReceiveChannel[RecomputeTask | WeighTask]
MOST_TASKS = 4
"""One is given at a time."""
TASK_S = 600.0
"""For a task of the worker, which may compute a large microbatch on few cores."""


@dataclass(frozen=True, slots=True)
class CaseHooks:
    """Callbacks to the seat."""

    opened: Callable[[str], None]
    """The version is here; with words: it cannot be."""
    computed: Callable[[RecomputeTask | WeighTask, Outcome], None]


@dataclass(eq=False, slots=True)
class _Opened:
    case: OpenCase
    give: trio.MemorySendChannel[RecomputeTask | WeighTask]
    life: trio.CancelScope = field(default_factory=trio.CancelScope)
    shown: dict[PayloadKey, bytes] = field(default_factory=dict)
    acquisition: StageAcquisition | None = None


class UmpireDriver:
    """See the module's docstring.

    Args:
        context: of the stages of this volunteer.
        view: the present swarm.
        nursery: of the seat: a case ends with it.
        hooks: to the seat.
    """

    def __init__(
        self,
        context: StageContext,
        view: Callable[[], SwarmView],
        nursery: trio.Nursery,
        hooks: CaseHooks,
    ) -> None:
        self._context, self._view, self._nursery, self._hooks = context, view, nursery, hooks
        self._opened: _Opened | None = None

    def perform(self, effect: CaseEffect, parts: Sequence[bytes]) -> None:
        """Perform an effect of the seat's umpire; ``parts`` are the payload that it is about."""
        match effect:
            case OpenCase():
                self._close()
                give, tasks = trio.open_memory_channel[RecomputeTask | WeighTask](MOST_TASKS)
                opened = self._opened = _Opened(effect, give)
                self._nursery.start_soon(self._judge, opened, tasks)
            case KeepShown(key) if self._opened is not None:
                self._opened.shown[key] = parts[0]
            case JudgeTask(task) if self._opened is not None:
                self._opened.give.send_nowait(task)
            case CloseCase():
                self._close()
            case _:
                pass

    def copied(self, peer: PeerId, message: Copied, payload: bytes) -> bool:
        """Take a part of what is downloaded for the case; False: it is for somebody else."""
        opened = self._opened
        if opened is None or opened.acquisition is None or message.stage != opened.case.stage:
            return False
        version = message.kind != "state" or message.version == opened.case.version
        if not version or (message.kind == "state" and peer != opened.case.donor):
            return False
        opened.acquisition.copied(peer, message, payload)
        return True

    def peer_lost(self, peer: PeerId) -> None:
        """A peer has left or was lost."""
        if self._opened is not None and self._opened.acquisition is not None:
            self._opened.acquisition.peer_lost(peer)

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.life.cancel()
            self._opened = None

    async def _judge(self, opened: _Opened, tasks: Tasks) -> None:
        """Hold the version until the case is closed."""
        stage, budget = opened.case.stage, self._context.memory_budget
        problem = ""
        with opened.life, tasks:
            try:
                fit = budget.take_beside(stage)
                try:
                    async with self._context.workers.lend() as worker:
                        acquisition = StageAcquisition(
                            self._context.terms, stage, worker, self._view, _waits
                        )
                        opened.acquisition = acquisition
                        await acquisition.open(fit)
                        case = opened.case
                        await acquisition.load_for_case(case.version, case.state, case.donor)
                        await worker.call(KeepVersion(step=case.version, umpire=True))
                        self._tell(opened, partial(self._hooks.opened, ""))
                        async for task in tasks:
                            outcome = await self._run(worker, opened, task)
                            self._tell(opened, partial(self._hooks.computed, task, outcome))
                finally:
                    budget.release_beside(stage)
            except (UserError, DownloadFailed, RequestFailed, WorkerDied, OSError) as error:
                problem = str(error)
        if problem:
            self._tell(opened, partial(self._hooks.opened, problem))

    def _tell(self, opened: _Opened, tell: Callable[[], None]) -> None:
        """Tell the seat, unless the case was closed meanwhile."""
        if self._opened is opened:
            tell()

    async def _run(
        self, worker: Worker, opened: _Opened, task: RecomputeTask | WeighTask
    ) -> Outcome:
        terms, manifest = self._context.terms, self._context.terms.manifest
        first, last = opened.case.stage == 0, opened.case.stage == manifest.stage_count - 1
        place = SeatConstants(terms.me, first, last, 0, manifest.data.packed)
        if not (first and isinstance(task, RecomputeTask) and terms.leaves is not None):
            return await self._outcome(worker, opened, to_call(task, place))
        await terms.leaves.wait(task.microbatch)
        terms.leaves.begin(task.microbatch)
        try:
            return await self._outcome(worker, opened, to_call(task, place))
        finally:
            terms.leaves.end(task.microbatch)

    async def _outcome(self, worker: Worker, opened: _Opened, call: Call) -> Outcome:
        request = call.request
        try:
            if call.tokens is not None:
                request = msgspec.structs.replace(request, tokens=opened.shown.pop(call.tokens))
            sources = [b"" if key is None else opened.shown.pop(key) for key in call.sources]
            with trio.fail_after(TASK_S):
                reply, payloads = await worker.call(request, sources)
        except KeyError:
            return Outcome(error="gone")
        except trio.TooSlowError:
            return Outcome(error="slow")
        except RequestFailed as failure:
            return Outcome(error=ERRORS.get(failure.kind, failure.kind))
        return to_outcome(reply, payloads)


def _waits(phase: object, words: str = "") -> None:
    """Nobody is told how far a case is opened: the seat goes on."""
