"""The failpoints of a seat (``client.faults``); they do nothing unless armed."""

from __future__ import annotations

from client import faults
from protocol.pipeline.effects import ApplyTask, BackwardTask, LossTask, ReduceTask, Task
from protocol.wire.messages import Backward, Forward, Message, Segment


def before_send(message: Message, payload: bytes, stage: int, worker: int) -> bytes:
    """Return a payload to be sent, damaged if a failpoint says so."""
    if faults.active is None:
        return payload
    step: int
    phase: faults.Phase
    match message:
        case Forward(step=step):
            phase = "forward"
        case Backward(step=step):
            phase = "backward"
        case Segment(step=step):
            phase = "averaging"
        case _:
            return payload
    if phase != "averaging":  # the failpoint's moment comes once the others' shards are here
        faults.active.reach(phase, step, stage, worker)
    return faults.active.sent(payload, phase, step, stage)


def before_task(task: Task, *, stage: int, first: bool, worker: int) -> None:
    """A task is about to be given to the worker."""
    if faults.active is None:
        return
    match task:
        case LossTask():
            faults.active.reach("forward", task.step, stage, worker)
        case BackwardTask() if first:
            faults.active.reach("backward", task.step, stage, worker)
        case ReduceTask():
            faults.active.reach("averaging", task.step, stage, worker)
        case ApplyTask():
            faults.active.reach("before-optimizer", task.step, stage, worker)


def after_task(task: Task, *, stage: int, worker: int) -> None:
    """A task is done and nobody was told."""
    if faults.active is not None and isinstance(task, ApplyTask):
        faults.active.reach("after-optimizer", task.step, stage, worker)


def recovering(step: int, stage: int, worker: int) -> None:
    """A microbatch is re-routed, or a stage's state is about to be downloaded."""
    if faults.active is not None:
        faults.active.reach("recovery", step, stage, worker)


def before_save(version: int, stage: int, worker: int) -> None:
    """The state of a version is about to be written."""
    if faults.active is not None:
        faults.active.reach("checkpoint", version, stage, worker)
