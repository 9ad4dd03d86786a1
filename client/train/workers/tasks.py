"""The payloads of a seat's tasks: what goes to the worker beside a task, and what it yields.

Pure; the order is that of `client.compute.requests`.
"""

from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    CompareTask,
    ContributeTask,
    DecodeTask,
    ForwardTask,
    LossTask,
    PassTask,
    PayloadKey,
    PayloadName,
    ReduceTask,
    Task,
)
from protocol.pipeline.place import Place


def sources(task: Task, place: Place, *, graph_kept: bool = False) -> tuple[PayloadKey | None, ...]:
    """Return what a task takes; None stands for an empty payload.

    Args:
        graph_kept: whether the worker has the graph of a pass back, which needs no input then.
    """
    match task:
        case PassTask(into="audit"):
            return task.shown
        case ForwardTask(step, m) | LossTask(step, m) | BackwardTask(step, m) | PassTask(step, m):
            back = isinstance(task, BackwardTask) or (
                isinstance(task, PassTask) and task.into == "less" and not place.last
            )
            given = (PayloadKey(step, "grad_in", m),) if back else ()
            if place.first or graph_kept:  # the first stage reads samples
                return given
            tokens = place.last or place.tokens_everywhere
            names: tuple[PayloadName, ...] = ("input", "tokens") if tokens else ("input",)
            return (*given, *(PayloadKey(step, name, m) for name in names))
        case ReduceTask(parts=parts, compare_to=None):
            return tuple(key for key in parts if key.peer != place.me)  # ours the worker has
        case ReduceTask():
            return (*task.parts, task.compare_to)
        case DecodeTask():
            return (task.reduced,)
        case ApplyTask():
            return task.reduced
        case CompareTask():
            return task.segments
        case _:
            return ()


def results(task: Task, place: Place) -> tuple[PayloadKey, ...]:
    """Return what a task yields."""
    match task:
        case LossTask(step, m) | BackwardTask(step, m) if not place.first:
            return (PayloadKey(step, "grad_out", m),)
        case ForwardTask(step, m) | PassTask(step, m, "loss") if not place.last:
            output = PayloadKey(step, "output", m)
            return (output, PayloadKey(step, "tokens", m)) if place.first else (output,)
        case ContributeTask(step, attempt, bounds):
            segments = range(len(bounds) - 1)
            return tuple(PayloadKey(step, "segment", i, attempt, place.me) for i in segments)
        case ReduceTask(step, attempt, segment, compare_to=None):
            return (PayloadKey(step, "reduced", segment, attempt, place.me),)
        case _:
            return ()
