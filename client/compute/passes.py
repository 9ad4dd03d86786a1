"""Forward and backward passes of one microbatch, each all or nothing.

A pass either answers and has counted its microbatch, or raises and has changed nothing but
scratch. Recomputing from the wire-form input gives the bits that the kept graph would give, unless
memory was short in between and fewer sequences are run at once (`Replica.halve`), the number of
threads has changed, or blocks run compiled since (`compiling`, which has the tolerance): then sums
are made in another order, as on another replica's machine.

Shapes: B sequences, T tokens, C width, K numbers of a token at a boundary.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from client.compute.codec import Boundary
from client.compute.errors import GraphGone, PoisonedTensor, ShapeError
from client.compute.payload import Buffer, Payloads
from client.compute.readings import Check, Readings
from client.compute.replica import LocalReplica, Replica
from client.compute.slot import Graph, Slot
from client.compute.wire import StageInput
from model_zoo.head_loss import losses_of_hidden
from model_zoo.stages import Stage, shown_share
from protocol.pipeline.effects import BackwardTask, ForwardTask, LossTask, Outcome, PassTask

Sent = Sequence[Buffer | Boundary]

LARGEST_GRADIENT = 2.0**31
"""Bound of a gradient's element in one microbatch. The sum of 16,384 such elements can still be
averaged: it is far below the largest number that the codecs send."""

LARGEST_LOSS = 1e24
"""Bound of a microbatch's summed loss; a step's sum stays within the bound of a message."""


def forward(
    replica: Replica, task: ForwardTask | PassTask, payloads: Payloads
) -> tuple[Outcome, Sent]:
    """Run the forward of a stage that is not the last; keep the graph if memory allows. A held-out
    microbatch is run at the version's own parameters, and leaves nothing.

    Returns the output, and the tokens if they were read from the corpus.
    """
    replica.check_step(task.step)
    readings = Readings()
    given, tokens = stage_input(replica, task.microbatch, payloads, readings)
    parts, keep = replica.parts, False
    if isinstance(task, PassTask):
        stage = replica.version_stage
    else:
        if not replica.part.embeds:  # tokens have no size
            readings.note(replica.outliers.check(given.x, "forward", task.microbatch))
        replica.graphs.pop(task.microbatch, None)
        keep = len(replica.graphs) < replica.graphs_kept and len(parts) == 1
        stage = replica.module
    graphs = [run_forward(stage, given.of(part), with_graph=keep) for part in parts]
    output = _joined([graph.output for graph in graphs])
    boundary = readings.note(replica.wire.boundary_out(output, "forward"))
    readings.read()
    if keep:
        replica.graphs[task.microbatch] = graphs[0]
    return Outcome(graph_kept=keep), [boundary.found, *([] if payloads else [memoryview(tokens)])]


def backward(
    replica: Replica, task: LossTask | BackwardTask, payloads: Payloads
) -> tuple[Outcome, Sent]:
    """Run the stage's backward from the kept graph, or from its input if that is given; add its
    gradient, in the last stage that of the *sum* of the tokens' losses.

    Returns the summed loss, in the last stage, and the input's gradient.
    """
    replica.check_step(task.step)
    replica.check_counted(task.microbatch, counted=False)
    loss_sum = 0.0
    if task.microbatch in replica.graphs:
        readings = Readings()
        gradient = _gradient_in(replica, task, payloads, readings)
        graph = replica.graphs.pop(task.microbatch)  # backward frees its tensors
        noted = run_back(replica, replica, [(graph, gradient)], task, readings)
        readings.read()
        sent_back = [each.found for each in noted]
    elif isinstance(task, BackwardTask) and len(payloads) == 1 and replica.samples is None:
        raise GraphGone(f"the graph of microbatch {task.microbatch} was not kept")
    else:
        loss_sum, sent_back = run_again(replica, replica, task, payloads)
    replica.count(task.microbatch)
    return Outcome(loss_sum=loss_sum), sent_back


def subtract(replica: Replica, task: PassTask, payloads: Payloads) -> Outcome:
    """Recompute a counted microbatch and subtract its gradient from the sum.

    In local rounds it has moved the weights by now, and stays in them; but it weighs no more.
    """
    replica.check_step(task.step)
    replica.check_counted(task.microbatch, counted=True)
    if isinstance(replica, LocalReplica):
        replica.counted.discard(task.microbatch)
    else:
        run_again(replica, replica, task, payloads)
        replica.take_out(task.microbatch)
    return Outcome()


def run_again(
    replica: Replica, slot: Slot, task: LossTask | BackwardTask | PassTask, payloads: Payloads
) -> tuple[float, list[Boundary]]:
    """Run a microbatch forward and back from its input, at the parameters of a slot; its gradient
    is in scratch then. Where not all targets are learned the loss is the mean over those that are,
    times all.

    The payloads are the gradient of the output, unless the stage is the last, and the input.
    Returns the loss, and what a replica sends of it: for an audit the output, unless the stage is
    the last, and the gradient of the input, unless it is the first.
    """
    readings, part, gradient = Readings(), replica.part, None
    if not part.has_head:
        gradient = _gradient_in(replica, task, payloads, readings)
        payloads = payloads[1:]
    given, _ = stage_input(replica, task.microbatch, payloads, readings, gradient is not None)
    if isinstance(task, LossTask) and not part.embeds:
        readings.note(replica.outliers.check(given.x, "forward", task.microbatch))
    audited = isinstance(task, PassTask) and task.into == "audit"
    found, outputs = list[Check[float]](), list[Tensor]()

    def passes() -> Iterator[tuple[Graph, Tensor | None]]:
        for piece in replica.parts:
            if gradient is None:
                graph, loss = run_loss(replica, slot.module, given.of(piece))
                found.append(readings.note(_loss(loss.detach(), graph.output.detach())))
                yield graph, None
                continue
            graph = run_forward(slot.module, given.of(piece), with_graph=True)
            if audited:
                outputs.append(graph.output.detach())
            yield graph, gradient[piece]

    noted = run_back(replica, slot, passes(), task, readings)
    if outputs:
        output = replica.wire.boundary_out(_joined(outputs), "forward")
        noted = [readings.note(output), *noted]
    readings.read()
    loss_sum = sum(each.found for each in found)
    if given.targets is not None and replica.wire.run.data.masked:
        loss_sum *= shown_share(given.targets)
    return loss_sum, [each.found for each in noted]


def evaluate(replica: Replica, task: PassTask, payloads: Payloads) -> tuple[Outcome, Sent]:
    """Run a held-out microbatch forward at the version's own parameters, and count nothing.

    Returns the summed loss of the learned tokens, in the last stage, else what `forward` does.
    """
    if not replica.part.has_head:
        return forward(replica, task, payloads)
    replica.check_step(task.step)
    stage, readings = replica.version_stage, Readings()
    given, _ = stage_input(replica, task.microbatch, payloads, readings)
    with torch.no_grad():
        losses = [run_loss(replica, stage, given.of(p), 1.0)[1] for p in replica.parts]
    found = [readings.note(_loss(loss, loss)) for loss in losses]
    readings.read()
    return Outcome(loss_sum=sum(each.found for each in found)), []


def stage_input(
    replica: Replica, microbatch: int, payloads: Payloads, readings: Readings, place: int = 0
) -> tuple[StageInput, Buffer]:
    """Return the input of a stage, by its payloads or from its samples, and its tokens: empty where
    the stage has no use for them. ``place`` is that of the input in the request."""
    wire, part = replica.wire, replica.part
    if part.embeds:
        if not payloads and replica.samples is not None:
            payloads = [replica.samples.read(microbatch)]
        (tokens,) = exactly(payloads, 1)
        return wire.tokens_in(tokens), tokens
    payload, *rest = exactly(payloads, 2 if part.has_head or wire.run.tokens_everywhere else 1)
    x = wire.boundary_in(payload, "forward", place, readings)
    return (wire.tokens_in(rest[0], x), rest[0]) if rest else (StageInput(x), b"")


def run_forward(stage: Stage, given: StageInput, *, with_graph: bool) -> Graph:
    """Run a stage on its input, recording a graph if ``with_graph``; a hidden input becomes the
    leaf of the graph."""
    x = given.x
    with torch.set_grad_enabled(with_graph):
        leaf = x.detach().requires_grad_(with_graph) if x.is_floating_point() else None
        return Graph(leaf, stage(x if leaf is None else leaf, given.begins, given.inputs))


def run_loss(
    replica: Replica, stage: Stage, given: StageInput, weight: float | None = None
) -> tuple[Graph, Tensor]:
    """Run the last stage forward; return the graph, whose output is what is run back, and the
    summed loss. ``weight`` is that of the loss in what is run back; None: as the manifest has
    it."""
    x, weight = given.x, replica.wire.run.data.loss_weight if weight is None else weight
    leaf = x.detach().requires_grad_() if x.is_floating_point() else None
    assert given.targets is not None
    with stage.computing(x.device):
        hidden = stage.hidden(x if leaf is None else leaf, given.begins, given.inputs)  # (B, T, C)
        loss, whole = losses_of_hidden(stage, hidden, given.targets, weight)
    return Graph(leaf, whole), loss


class _Given(torch.autograd.Function):
    """A loss that has a given gradient: where backward() itself is given one it loads sympy, which
    takes half a second and 34 MiB of each worker."""

    @staticmethod
    def forward(context: Any, output: Tensor, gradient: Tensor) -> Tensor:
        context.save_for_backward(gradient)
        return output.new_zeros(())

    @staticmethod
    def backward(context: Any, _loss: Tensor) -> tuple[Tensor, None]:
        return context.saved_tensors[0], None


def run_back(
    replica: Replica,
    slot: Slot,
    passes: Iterable[tuple[Graph, Tensor | None]],
    task: LossTask | BackwardTask | PassTask,
    readings: Readings,
) -> list[Check[Boundary]]:
    """Fill `flat.gradients` with the gradient of this pass alone, and note whether it is finite and
    of sane magnitude; return the encoded input gradient, if there is one.

    ``passes`` yields for each slice of the sequences its graph, and the gradient of its output,
    None if that is the loss.
    """
    slot.flat.zero_gradients()
    replica.sums.clear()
    of_inputs = []
    for graph, gradient in passes:
        whole = graph.output
        if gradient is not None:
            whole = _Given.apply(whole, gradient)  # type: ignore[no-untyped-call]
        torch.autograd.backward(whole)
        if graph.leaf is not None and graph.leaf.grad is not None:
            of_inputs.append(graph.leaf.grad)
    extremes = torch.stack(torch.aminmax(slot.flat.gradients))  # both are NaN if any is
    readings.note(Check(extremes, _judge_gradients))
    if not of_inputs:
        return []
    of = task.step, task.microbatch
    return [readings.note(replica.wire.boundary_out(_joined(of_inputs), "backward", of))]


def _judge_gradients(extremes: Sequence[float]) -> None:
    low, high = extremes
    if not (-low <= LARGEST_GRADIENT and high <= LARGEST_GRADIENT):
        raise PoisonedTensor("the gradient of the parameters is not finite or of absurd magnitude")


def _loss(loss: Tensor, whole: Tensor) -> Check[float]:
    """Check what is run back, and return the loss."""

    def judge(numbers: Sequence[float]) -> float:
        if not numbers[1] <= LARGEST_LOSS:
            raise PoisonedTensor("the loss is not finite or of absurd magnitude")
        return numbers[0]

    return Check(torch.stack([loss, whole]), judge)


def _gradient_in(
    replica: Replica,
    task: BackwardTask | PassTask | LossTask,
    payloads: Payloads,
    readings: Readings,
) -> Tensor:
    """Return the gradient of the output, which comes first: (B, T, K)."""
    (sent,) = exactly(payloads[:1], 1)
    gradient = replica.wire.boundary_in(sent, "backward", 0, readings)
    if isinstance(task, BackwardTask):
        readings.note(replica.outliers.check(gradient, "backward", task.microbatch))
    return gradient


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    """Put slices of the sequences together: (B, T, C)."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


def exactly(payloads: Payloads, count: int) -> Payloads:
    if len(payloads) != count:
        raise ShapeError(f"{count} payloads were expected, not {len(payloads)}")
    return payloads
