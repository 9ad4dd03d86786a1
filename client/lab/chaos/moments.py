"""The moments at which a failpoint acts in a node's seats.

A user's volunteer has none of this: ``client.lab.chaos.armed`` puts the classes below in the place
of those that they are made from.
"""

from pathlib import Path
from typing import ClassVar

from client.lab.chaos.failpoints import Failpoint, Phase
from client.train.stage import held_stage, seat_driver
from client.train.stage.saver import StateSaver
from client.train.stage.seat_driver import SeatDriver
from client.train.stage.stage_acquisition import StageAcquisition
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    LossTask,
    ReduceTask,
    Rerouted,
    SendPayload,
    Task,
)
from protocol.seat.effects import SeatEffect
from protocol.wire.messages import Admit, Backward, Forward, Message, Segment


def arm_node(failpoint: Failpoint) -> None:
    """Have all seats of this process meet a failpoint."""
    _Armed.failpoint = failpoint
    held_stage.SeatDriver = ArmedSeat  # type: ignore[attr-defined]
    held_stage.StageAcquisition = ArmedAcquisition  # type: ignore[attr-defined]
    seat_driver.StateSaver = ArmedSaver  # type: ignore[attr-defined]


def moment_of_task(task: Task, *, first: bool) -> Phase | None:
    """Return the moment when a task is about to be given to the worker; None: it has none.

    Args:
        task: the task.
        first: whether the stage is the first.
    """
    match task:
        case LossTask():
            return "forward"
        case BackwardTask() if first:
            return "backward"
        case ReduceTask():
            return "averaging"
        case ApplyTask():
            return "before-optimizer"
        case _:
            return None


def leaving(failpoint: Failpoint, message: Message, payload: bytes, worker: int) -> bytes:
    """Return a payload that is about to go out, damaged if the failpoint says so."""
    phase: Phase
    match message:
        case Forward():
            phase = "forward"
        case Backward():
            phase = "backward"
        case Segment():
            phase = "averaging"
        case _:
            return payload
    if phase != "averaging":  # the failpoint's moment comes once the others' shards are here
        failpoint.reach(phase, message.step, worker)
    return failpoint.sent(payload, phase, message.step)


class _Armed:
    failpoint: ClassVar[Failpoint]


class ArmedSeat(_Armed, SeatDriver):
    """A seat that meets a failpoint."""

    def _reach(self, phase: Phase, step: int) -> None:
        self.failpoint.reach(phase, step, self._worker.pid)

    def _start(self, task: Task) -> bool:
        if (phase := moment_of_task(task, first=self._place.first)) is not None:
            self._reach(phase, task.step)
        return super()._start(task)

    def _store(self, task: Task, payloads: list[bytes]) -> None:
        if isinstance(task, ApplyTask):  # it is done, and nobody was told
            self._reach("after-optimizer", task.step)
        super()._store(task, payloads)

    def _payload(self, sending: SendPayload) -> bytes:
        payload = super()._payload(sending)
        return leaving(self.failpoint, sending.message, payload, self._worker.pid)

    def _perform_one(self, effect: SeatEffect, parts: tuple[bytes, ...]) -> None:
        if isinstance(effect, Rerouted):
            self._reach("recovery", effect.step)
        super()._perform_one(effect, parts)


class ArmedAcquisition(_Armed, StageAcquisition):
    """An attempt to take a stage that meets a failpoint."""

    async def load(self, admit: Admit) -> None:
        """See ``StageAcquisition``."""
        self.failpoint.reach("recovery", admit.version, self._worker.pid)
        await super().load(admit)


class ArmedSaver(_Armed, StateSaver):
    """A saver of states that meets a failpoint."""

    def _save(self, version: int, path: Path, *, durable: bool) -> None:
        if not self._busy:
            self.failpoint.reach("checkpoint", version, self._worker.pid)
        super()._save(version, path, durable=durable)
