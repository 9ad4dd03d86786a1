"""Writes every committed step and held-out loss to the owner's folder, in a thread, so that
training never waits.

A folder that cannot be written is told of once; training goes on, and what comes meanwhile is
written when the folder can be written again, as far as it is remembered.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from client.events import Event, StageClosed, StepCommitted, VersionEvaluated
from client.store.step_log import HeldOutRecord, LogRecord, StepLog, StepRecord
from protocol.effects import Explain

MOST_WAITING: Final = 1024
"""Steps remembered while they cannot be written; the oldest go first."""
AGAIN_S: Final = 5.0
END_S: Final = 2.0
"""Longest wait for the disk at the end."""


class StepWriter:
    """See the module's docstring.

    Args:
        log: where to.
        swarm: beginning of the swarm's id.
        tokens_per_s: returns the swarm's speed; 0: not known yet.
        members: returns how many volunteers serve each stage.
        explain: tells the owner.
    """

    def __init__(
        self,
        log: StepLog,
        swarm: str,
        tokens_per_s: Callable[[], float],
        members: Callable[[], list[int]],
        explain: Callable[[Explain], None],
    ) -> None:
        self._log, self._swarm, self._explain = log, swarm, explain
        self._tokens_per_s, self._members = tokens_per_s, members
        self._norms: dict[int, StageClosed] = {}
        """What closed last, by stage of ours."""
        self._waiting: deque[LogRecord] = deque(maxlen=MOST_WAITING)
        self._news = trio.Event()
        self._writing = threading.Lock()
        """An abandoned thread may still write."""
        self._failed = False
        self._lost = 0

    def hear(self, event: Event) -> None:
        """Take an event of the node; returns at once."""
        match event:
            case StageClosed():
                self._norms[event.stage] = event
            case StepCommitted() if math.isfinite(event.loss):  # JSON has no other numbers
                self._put(self._record(event))
            case VersionEvaluated():
                self._put(self._held_out(event))

    def _put(self, record: LogRecord) -> None:
        self._lost += len(self._waiting) == MOST_WAITING
        self._waiting.append(record)
        self._news.set()

    def _held_out(self, event: VersionEvaluated) -> HeldOutRecord:
        return HeldOutRecord(
            swarm=self._swarm,
            step=event.version,
            time=time.time(),
            held_out_loss=event.loss,
            bits_per_byte=event.bits_per_byte,
            held_out_tokens=event.tokens,
            vouchers=event.vouchers,
            claims=event.claims,
        )

    def _record(self, event: StepCommitted) -> StepRecord:
        closed = [one for one in self._norms.values() if one.version == event.step + 1]
        return StepRecord(
            swarm=self._swarm,
            step=event.step,
            time=time.time(),
            loss=event.loss,
            tokens=event.tokens,
            tokens_per_s=self._tokens_per_s() or None,
            members=self._members(),
            grad_norm={
                str(one.stage): one.grad_norm for one in closed if math.isfinite(one.grad_norm)
            },
        )

    async def run(self) -> None:
        """Write until cancelled, then what is left."""
        try:
            while True:
                await self._news.wait()
                self._news = trio.Event()
                while self._waiting:
                    await self._write()
                    if self._failed:
                        await trio.sleep(AGAIN_S)
        finally:
            if self._waiting:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + END_S):
                    await self._write()

    async def _write(self) -> None:
        batch = list(self._waiting)
        problem = await trio.to_thread.run_sync(
            self._append,
            batch,
            abandon_on_cancel=True,  # type: ignore[call-arg]  # the stubs are of an older trio
        )  # abandoned, because a disk that hangs must not keep the node from ending
        if problem is not None:
            self._tell_failure(problem)
            return
        for record in batch:
            if self._waiting and self._waiting[0] is record:
                self._waiting.popleft()
        if self._failed:
            self._failed = False
            lost = f"; {self._lost} steps are missing" if self._lost else ""
            self._explain(Explain("swarm", f"{self._log.path} is written again{lost}"))

    def _tell_failure(self, problem: str) -> None:
        if not self._failed:
            words = (
                f"cannot write {self._log.path}: {problem}; training goes on without it. "
                "Make room, or choose another --log-dir at the next start"
            )
            self._explain(Explain("swarm", words, "warning"))
        self._failed = True

    def _append(self, batch: list[LogRecord]) -> str | None:
        """Write steps, in a thread; return why that failed."""
        try:
            with self._writing:
                self._log.append(batch)
        except OSError as error:
            return error.strerror or str(error)
        return None
