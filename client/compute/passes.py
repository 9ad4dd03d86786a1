"""Forward and backward passes of one microbatch, each all or nothing.

A pass either answers and has counted its microbatch, or raises and has changed nothing but
scratch. Recomputing from the wire-form input gives the bits that the kept graph would give, unless
memory was short in between and fewer sequences are run at once (`Replica.halve`), the number of
threads has changed, or blocks run compiled since (`compiling`, which has the tolerance): then sums
are made in another order, as on another replica's machine.

Shapes: B sequences, T tokens, C width, K numbers of a token at a boundary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from client.compute.errors import GraphGone, PoisonedTensor, ShapeError, StaleRequest
from client.compute.payload import Buffer
from client.compute.readings import Check, Readings
from client.compute.replica import Replica
from client.compute.slot import Graph, Slot
from client.compute.wire import Boundary, Of, SentTokens
from model_zoo.head_loss import losses_of_hidden
from model_zoo.stages import shown_share
from protocol.pipeline.effects import BackwardTask, ForwardTask, LossTask, Outcome, PassTask

Payloads = Sequence[Buffer]
Sent = Sequence[Buffer | Boundary]

LARGEST_GRADIENT = 2.0**31
"""Bound of a gradient's element in one microbatch. The sum of 16,384 such elements can still be
averaged: it is far below the largest number that the codecs send."""

LARGEST_LOSS = 1e24
"""Bound of a microbatch's summed loss; a step's sum stays within the bound of a message."""


@dataclass(frozen=True, slots=True)
class StageInput:
    """What a stage is run on.

    Fields:
        x: tokens (B, T) int64 on the first stage, else (B, T, K).
        sent: the microbatch's tokens, where the stage has a use for them.
    """

    x: Tensor
    sent: SentTokens | None = None

    @property
    def beside(self) -> tuple[Tensor | None, Tensor | None]:
        """Where documents begin, and the tokens: as `Stage.hidden` takes them."""
        return (None, None) if self.sent is None else (self.sent.begins, self.sent.inputs)

    @property
    def targets(self) -> Tensor:
        """Of the last stage, (B, T) int64."""
        assert self.sent is not None
        return self.sent.targets

    def __getitem__(self, part: slice) -> "StageInput":
        """The same of some sequences."""
        if self.sent is None:
            return StageInput(self.x[part])
        inputs, targets, begins = self.sent
        begins = begins if begins is None else begins[part]
        return StageInput(self.x[part], SentTokens(inputs[part], targets[part], begins))


def forward(replica: Replica, task: ForwardTask, payloads: Payloads) -> tuple[Outcome, Sent]:
    """Run the stage's forward; keep the graph if memory allows.

    `replica` computes. Returns the output, and the tokens if they were read from the corpus.
    """
    slot, readings = replica.at(task.step), Readings()
    _only_inner(replica)
    given, tokens = stage_input(replica, task.microbatch, payloads, readings)
    if not replica.part.embeds:  # tokens have no size
        readings.note(replica.outliers.check(given.x, "forward", task.microbatch))
    slot.graphs.pop(task.microbatch, None)
    parts = replica.parts
    keep = len(slot.graphs) < replica.graphs_kept and len(parts) == 1
    graphs = [run_forward(slot, given[part], with_graph=keep) for part in parts]
    output = _joined([graph.output for graph in graphs])
    boundary = readings.note(replica.wire.boundary_out(output, "forward"))
    readings.read()
    if keep:
        slot.graphs[task.microbatch] = graphs[0]
    return Outcome(graph_kept=keep), [boundary.found, *([] if payloads else [memoryview(tokens)])]


def forward_backward(replica: Replica, task: LossTask, payloads: Payloads) -> tuple[Outcome, Sent]:
    """Run forward and backward of the last stage and add its gradient; that of the *sum* of the
    tokens' losses.

    `replica` computes. Returns the summed loss and the gradient of the input.
    """
    slot = replica.at(task.step)
    slot.check_counted(task.microbatch, counted=False)
    loss, gradient = loss_and_gradient(replica, slot, task, payloads)
    replica.count(task.microbatch)
    return Outcome(loss_sum=loss), gradient


def backward(replica: Replica, task: BackwardTask, payloads: Payloads) -> tuple[Outcome, Sent]:
    """Run the stage's backward from the kept graph, or from its input if that is given; add its
    gradient.

    `replica` computes. Returns the input's gradient.
    """
    slot = replica.at(task.step)
    slot.check_counted(task.microbatch, counted=False)
    _only_inner(replica)
    readings = Readings()
    gradient = _gradient_in(replica, payloads, readings)
    readings.note(replica.outliers.check(gradient, "backward", task.microbatch))
    of = task.step, task.microbatch
    graph = slot.graphs.pop(task.microbatch, None)  # backward frees its tensors
    if graph is not None:
        sent_back = run_back(replica, slot, [(graph, graph.output, gradient)], of, readings)
    elif len(payloads) == 1 and replica.samples is None:
        raise GraphGone(f"the graph of microbatch {task.microbatch} was not kept")
    else:
        given, _ = stage_input(replica, task.microbatch, payloads, readings, 1)
        sent_back = _forward_and_back(replica, slot, given, gradient, of, readings)
    readings.read()
    replica.count(task.microbatch)
    return Outcome(), [each.found for each in sent_back]


def subtract(replica: Replica, task: PassTask, payloads: Payloads) -> Outcome:
    """Recompute a counted microbatch and subtract its gradient from the sum.

    In local rounds it has moved the weights by now, and stays in them; but it weighs no more.
    """
    slot = replica.at(task.step)
    slot.check_counted(task.microbatch, counted=True)
    if replica.inner is not None:
        slot.counted.discard(task.microbatch)
    else:
        run_again(replica, slot, task, payloads, encodes=False)
        slot.take_out(task.microbatch)
    return Outcome()


def run_again(
    replica: Replica, slot: Slot, task: PassTask, payloads: Payloads, *, encodes: bool = True
) -> tuple[float, list[memoryview]]:
    """Run a microbatch forward and back from its input; its gradient is in scratch then.

    Args:
        replica: computes.
        slot: parameters and buffers of the step.
        task: names the microbatch.
        payloads: the gradient of the output, unless the stage is the last, and the input.
        encodes: whether the output is wanted.

    Returns the loss, and what a replica sends of it: the output, unless the stage is the last, and
    the gradient of the input, unless it is the first.
    """
    if replica.part.has_head:
        loss, sent_back = loss_and_gradient(replica, slot, task, payloads)
        return loss, [each.ready() for each in sent_back]
    readings = Readings()
    gradient = _gradient_in(replica, payloads, readings)
    given, _ = stage_input(replica, task.microbatch, payloads, readings, 1)
    of = task.step, task.microbatch
    again = _forward_and_back(replica, slot, given, gradient, of, readings, encodes=encodes)
    readings.read()
    return 0.0, [each.found.ready() for each in again]


def evaluate(replica: Replica, task: PassTask, payloads: Payloads) -> tuple[Outcome, Sent]:
    """Run a held-out microbatch forward at the version's own parameters, and count nothing.

    `replica` computes. Returns the summed loss of the learned tokens, in the last stage, else what
    `forward` does.

    Raises:
        StaleRequest: the version is another one by now.
    """
    if task.step != replica.version:
        raise StaleRequest(f"version {task.step} is gone, this is {replica.version}")
    stage, part, readings = replica.version_stage, replica.part, Readings()
    given, tokens = stage_input(replica, task.microbatch, payloads, readings)
    parts = replica.parts
    with torch.no_grad(), stage.computing(given.x.device):
        pieces = (given[part] for part in parts)
        hidden = (stage.hidden(each.x, *each.beside) for each in pieces)
        if not part.has_head:
            output = _joined(list(hidden))
            boundary = readings.note(replica.wire.boundary_out(output, "forward"))
            readings.read()
            return Outcome(), [boundary.found, *([] if payloads else [memoryview(tokens)])]
        losses = [
            losses_of_hidden(stage, h, given.targets[p], 1.0)[0]
            for h, p in zip(hidden, parts, strict=True)
        ]
        found = [readings.note(_loss(loss, loss)) for loss in losses]
    readings.read()
    return Outcome(loss_sum=sum(each.found for each in found)), []


def stage_input(
    replica: Replica, microbatch: int, payloads: Payloads, readings: Readings, place: int = 0
) -> tuple[StageInput, Buffer]:
    """Return the input of a stage, and its tokens: empty where the stage has no use for them.

    Args:
        replica: of the stage.
        microbatch: whose samples are read, if the stage has them.
        payloads: of a request.
        readings: of the pass.
        place: of the input among them; the tokens are behind it.
    """
    wire, part = replica.wire, replica.part
    given = payloads[place:]
    if part.embeds:
        if not given and replica.samples is not None:
            given = [replica.samples.read(microbatch)]
        (tokens,) = exactly(given, 1)
        sent = wire.tokens_in(tokens)
        return StageInput(sent.inputs, sent), tokens
    payload, *rest = exactly(given, 2 if part.has_head or wire.run.tokens_everywhere else 1)
    tokens = rest[0] if rest else b""
    x, good = wire.boundary_in(payload, "forward", place)
    readings.note(good)
    return StageInput(x, wire.tokens_in(tokens) if rest else None), tokens


def run_forward(slot: Slot, given: StageInput, *, with_graph: bool) -> Graph:
    """Run the module of `slot` on its input, recording a graph if `with_graph`; a hidden input
    becomes the leaf of the graph."""
    x = given.x
    with torch.set_grad_enabled(with_graph):
        leaf = x.detach().requires_grad_(with_graph) if x.is_floating_point() else None
        output = slot.module(x if leaf is None else leaf, *given.beside)
        return Graph(leaf, output)


def run_loss(replica: Replica, slot: Slot, given: StageInput) -> tuple[Graph, Tensor]:
    """Run the last stage forward; return the graph, whose output is what is run back, and the
    summed loss.

    Args:
        replica: computes.
        slot: parameters of the step.
        given: input of the stage.
    """
    stage, x = slot.module, given.x
    leaf = x.detach().requires_grad_() if x.is_floating_point() else None
    with stage.computing(x.device):
        loss, whole = losses_of_hidden(
            stage,
            stage.hidden(x if leaf is None else leaf, *given.beside),  # (B, T, C)
            given.targets,
            replica.wire.run.data.loss_weight,
        )
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
    passes: Iterable[tuple[Graph, Tensor, Tensor | None]],
    of: Of,
    readings: Readings,
) -> list[Check[Boundary]]:
    """Fill `flat.gradients` with the gradient of this pass alone, and note whether it is finite and
    of sane magnitude; return the encoded input gradient, if there is one.

    Args:
        replica: computes.
        slot: parameters and buffers of the step.
        passes: of each slice of the sequences in turn: graph, output and the output's gradient,
            None if the output is the loss.
        of: the step and the microbatch.
        readings: of the pass.
    """
    slot.flat.zero_gradients()
    of_inputs = []
    for graph, output, gradient in passes:
        whole: Tensor = output
        if gradient is not None:
            whole = _Given.apply(output, gradient)  # type: ignore[no-untyped-call]
        torch.autograd.backward(whole)
        if graph.leaf is not None and graph.leaf.grad is not None:
            of_inputs.append(graph.leaf.grad)
    extremes = torch.stack(torch.aminmax(slot.flat.gradients))  # both are NaN if any is
    readings.note(Check(extremes, _judge_gradients))
    if not of_inputs:
        return []
    sent_back = replica.wire.boundary_out(_joined(of_inputs), "backward", of)
    return [readings.note(sent_back)]


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


def _gradient_in(replica: Replica, payloads: Payloads, readings: Readings) -> Tensor:
    """Return the gradient of the output, which comes first: (B, T, K)."""
    (sent,) = exactly(payloads[:1], 1)
    gradient, good = replica.wire.boundary_in(sent, "backward", 0)
    readings.note(good)
    return gradient


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    """Put slices of the sequences together: (B, T, C)."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


def _forward_and_back(
    replica: Replica,
    slot: Slot,
    given: StageInput,
    gradient: Tensor,
    of: Of,
    readings: Readings,
    *,
    encodes: bool = False,
) -> list[Check[Boundary]]:
    """Run a stage that is not the last forward and back from its input; as `run_again`."""
    outputs: list[Tensor] = []

    def passes() -> Iterator[tuple[Graph, Tensor, Tensor | None]]:
        for part in replica.parts:
            graph = run_forward(slot, given[part], with_graph=True)
            if encodes:
                outputs.append(graph.output.detach())
            yield graph, graph.output, gradient[part]

    sent_back = run_back(replica, slot, passes(), of, readings)
    if not encodes:
        return sent_back
    output = replica.wire.boundary_out(_joined(outputs), "forward")
    return [readings.note(output), *sent_back]


def loss_and_gradient(
    replica: Replica,
    slot: Slot,
    task: LossTask | PassTask,
    payloads: Payloads,
) -> tuple[float, list[Boundary]]:
    """Run the last stage forward and back; return the summed loss, the gradient of its input.

    Where not all targets are learned the loss is the mean over those that are, times all.

    Args:
        replica: computes.
        slot: parameters and buffers of the step.
        task: names the microbatch.
        payloads: the input and the tokens.
    """
    if not replica.part.has_head:
        raise ShapeError("only the last stage computes a loss")
    readings = Readings()
    given, _ = stage_input(replica, task.microbatch, payloads, readings)
    if isinstance(task, LossTask) and not replica.part.embeds:
        readings.note(replica.outliers.check(given.x, "forward", task.microbatch))
    found: list[Check[float]] = []

    def passes() -> Iterator[tuple[Graph, Tensor, Tensor | None]]:
        for part in replica.parts:
            graph, loss = run_loss(replica, slot, given[part])
            whole = graph.output
            found.append(readings.note(_loss(loss.detach(), whole.detach())))
            yield graph, whole, None

    gradient = run_back(replica, slot, passes(), (task.step, task.microbatch), readings)
    readings.read()
    loss_sum = sum(each.found for each in found)
    if replica.wire.run.data.masked:
        loss_sum *= shown_share(given.targets)
    return loss_sum, [each.found for each in gradient]


def _only_inner(replica: Replica) -> None:
    if replica.part.has_head:
        raise ShapeError("the last stage runs forward and backward in one request")


def exactly(payloads: Payloads, count: int) -> Payloads:
    if len(payloads) != count:
        raise ShapeError(f"{count} payloads were expected, not {len(payloads)}")
    return payloads
