"""Forward and backward passes of one microbatch, each all or nothing.

A pass either answers and has counted its microbatch, or raises and has changed nothing but
scratch. Recomputing from the wire-form input gives the bits that the kept graph would give, unless
memory was short in between and fewer sequences are run at once (`slicing`), the number of threads
has changed, or blocks run compiled since (`compiling`, which has the tolerance): then sums are made
in another order, as on another replica's machine.

Shapes: B sequences, T tokens, C width, K numbers of a token at a boundary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from client.compute.cut_stage import losses
from client.compute.errors import GraphGone, PoisonedTensor, ShapeError, StaleRequest
from client.compute.payload import Buffer
from client.compute.replica import Replica
from client.compute.replies import (
    BackwardDone,
    Forwarded,
    LossComputed,
    Passed,
)
from client.compute.requests import Backward, Forward, ForwardBackward, Pass
from client.compute.slicing import parts_of, within_memory
from client.compute.slot import Graph, Slot
from client.compute.wire import Of
from model_zoo.stages import shown_share

Payloads = Sequence[Buffer]

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
        begins: with which tokens documents begin, (B, T) bool on the CPU; None: each sequence is
            one.
        tokens: (B, T) int64 on another stage than the first, where boundaries are narrow.
    """

    x: Tensor
    begins: Tensor | None = None
    tokens: Tensor | None = None

    def __getitem__(self, part: slice) -> "StageInput":
        """The same of some sequences."""
        beside = (self.begins, self.tokens)
        return StageInput(self.x[part], *(each if each is None else each[part] for each in beside))


def forward(
    replica: Replica, request: Forward, payloads: Payloads
) -> tuple[Forwarded, list[memoryview]]:
    """Run the stage's forward; keep the graph if `request` asks for it and memory allows.

    `replica` computes; `payloads` is the stage's input. Returns the reply and the output.
    """
    slot = replica.at(request.step)
    _only_inner(replica)
    payloads, tokens = with_samples(replica, request.microbatch, payloads, 0)
    (payload,) = exactly(payloads, 1)
    given = stage_input(replica, payload, 0, request.tokens)
    _check_size(replica, given.x, request.microbatch)
    slot.graphs.pop(request.microbatch, None)
    keep = request.keep_graph and len(slot.graphs) < replica.graphs_kept

    def run() -> tuple[Graph | None, memoryview]:
        parts = parts_of(replica)
        with_graph = keep and len(parts) == 1
        graphs = [run_forward(slot, given[part], with_graph=with_graph) for part in parts]
        output = replica.team.joined([graph.output for graph in graphs])
        return graphs[0] if with_graph else None, replica.wire.boundary_out(output, "forward")

    graph, boundary = within_memory(replica, run)
    if graph is not None:
        slot.graphs[request.microbatch] = graph
    return Forwarded(graph_kept=graph is not None), [boundary, *tokens]


def forward_backward(
    replica: Replica, request: ForwardBackward, payloads: Payloads
) -> tuple[LossComputed, list[memoryview]]:
    """Run forward and backward of the last stage and add its gradient.

    `replica` computes; `request` names the microbatch and `payloads` its input. Returns the loss
    and the gradient of the input.
    """
    slot = replica.at(request.step)
    slot.check_counted(request.microbatch, counted=False)
    loss, gradient = loss_and_gradient(replica, slot, request, payloads)
    replica.count(request.microbatch)
    replica.outliers.count(request.microbatch)
    return LossComputed(loss_sum=loss, tokens=replica.wire.token_count), gradient


def backward(
    replica: Replica, request: Backward, payloads: Payloads
) -> tuple[BackwardDone, list[memoryview]]:
    """Run the stage's backward from the kept graph, or from its input if that is given.

    `replica` computes; `request` names the microbatch; `payloads` is the output's gradient and, to
    recompute the forward, the input. Returns the reply and the input's gradient.
    """
    slot = replica.at(request.step)
    slot.check_counted(request.microbatch, counted=False)
    _only_inner(replica)
    if not 1 <= len(payloads) <= 2:
        raise ShapeError(f"one or two payloads were expected, not {len(payloads)}")
    gradient = replica.wire.boundary_in(payloads[0], "backward", 0)
    replica.outliers.check(gradient, "backward", request.microbatch)
    of = request.step, request.microbatch

    def run() -> tuple[bool, list[memoryview]]:
        graph = slot.graphs.pop(request.microbatch, None)  # backward frees its tensors
        if graph is not None:
            own = gradient[replica.team.rows(len(gradient))]
            return False, run_backward(replica, slot, graph, graph.output, own, of)
        sent, _ = with_samples(replica, request.microbatch, payloads, 1)
        if len(sent) == 1:
            raise GraphGone(f"the graph of microbatch {request.microbatch} was not kept")
        given = stage_input(replica, sent[1], 1, request.tokens)
        return True, _forward_and_back(replica, slot, given, gradient, of)

    recomputed, sent_back = within_memory(replica, run)
    replica.count(request.microbatch)
    replica.outliers.count(request.microbatch)
    return BackwardDone(recomputed=recomputed), sent_back


def subtract(replica: Replica, request: Pass, payloads: Payloads) -> Passed:
    """Recompute a counted microbatch and subtract its gradient from the sum.

    In local rounds it has moved the weights by now, and stays in them; but it weighs no more.

    `replica` computes; `request` names the microbatch and documents its `payloads`.
    """
    slot = replica.at(request.step)
    slot.check_counted(request.microbatch, counted=True)
    if replica.inner is not None:
        slot.counted.discard(request.microbatch)
    else:
        run_again(replica, slot, request, payloads)
        slot.take_out(request.microbatch)
    return Passed()


def run_again(
    replica: Replica, slot: Slot, request: Pass, payloads: Payloads, claimed: Payloads = ()
) -> tuple[float, list[memoryview]]:
    """Run a microbatch forward and back from its input; its gradient is in scratch then.

    Args:
        replica: computes.
        slot: parameters and buffers of the step.
        request: names the microbatch.
        payloads: the gradient of the output, unless the stage is the last, and the input.
        claimed: what another replica has sent of it: the boundary tensor, unless the stage is the
            last, and the gradient of the input, unless it is the first.

    Returns the loss, and what is claimed as it is here, conditioned as there where the last bits
    decide.
    """
    if replica.part.has_head:
        like = claimed[0] if claimed else None
        return loss_and_gradient(replica, slot, request, payloads, like)
    payloads, _ = with_samples(replica, request.microbatch, payloads, 1)
    sent, at_input = exactly(payloads, 2)
    gradient = replica.wire.boundary_in(sent, "backward", 0)
    given = stage_input(replica, at_input, 1, request.tokens)
    of = request.step, request.microbatch

    def run() -> list[memoryview]:
        return _forward_and_back(replica, slot, given, gradient, of, claimed)

    return 0.0, within_memory(replica, run)


def evaluate(
    replica: Replica, request: Pass, payloads: Payloads
) -> tuple[Passed, list[memoryview]]:
    """Run a held-out microbatch forward at the version's own parameters, and count nothing.

    `replica` computes; `request` names the microbatch and documents its `payloads`. Returns the
    reply and, unless the stage is the last, the output.

    Raises:
        StaleRequest: the version is another one by now.
    """
    if request.step != replica.version:
        raise StaleRequest(f"version {request.step} is gone, this is {replica.version}")
    stage, part = replica.version_stage, replica.part
    tokens: Buffer = request.tokens
    if part.embeds and part.has_head:
        exactly(payloads, 0)
        read: list[memoryview] = []
        tokens = tokens if replica.samples is None else replica.samples.read(request.microbatch)
        given = stage_input(replica, tokens, 0)
    else:
        payloads, read = with_samples(replica, request.microbatch, payloads, 0)
        (payload,) = exactly(payloads, 1)
        given = stage_input(replica, payload, 0, tokens)

    def run() -> tuple[float, list[memoryview]]:
        parts = parts_of(replica)
        with torch.no_grad(), stage.computing(given.x.device):
            pieces = (given[part] for part in parts)
            hidden = (stage.hidden(each.x, each.begins, each.tokens) for each in pieces)
            if not part.has_head:
                output = replica.team.joined(list(hidden))
                return 0.0, [replica.wire.boundary_out(output, "forward"), *read]
            targets = replica.wire.tokens_in(tokens)[1]  # (B, T)
            found = (
                losses(stage, h, targets[p], z_weight=0.0, weight=1.0)[0].item()
                for h, p in zip(hidden, parts, strict=True)
            )
            return replica.team.summed(sum(found)), []

    loss_sum, sent = within_memory(replica, run)
    if not loss_sum <= LARGEST_LOSS:
        raise PoisonedTensor("the loss is not finite or of absurd magnitude")
    return Passed(loss_sum=loss_sum), sent


def stage_input(replica: Replica, payload: Buffer, part: int, tokens: Buffer = b"") -> StageInput:
    """Return the input of a stage.

    Args:
        replica: of the stage.
        payload: received: tokens on the first stage, else the boundary tensor.
        part: its position in its request, which is blamed if it is bad.
        tokens: of another stage than the first; needed where data is packed or boundaries are
            narrow.
    """
    wire = replica.wire
    if replica.part.embeds:
        return StageInput(wire.tokens_in(payload)[0], wire.begins_in(payload))
    x = wire.boundary_in(payload, "forward", part)
    return StageInput(x, wire.begins_in(tokens), wire.token_ids_in(tokens))


def _check_size(replica: Replica, x: Tensor, microbatch: int) -> None:
    """Refuse a tensor far from the usual size of the previous stage's; tokens have no size.

    Raises:
        OutlierTensor: it is.
    """
    if not replica.part.embeds:
        replica.outliers.check(x, "forward", microbatch)


def run_forward(slot: Slot, given: StageInput, *, with_graph: bool) -> Graph:
    """Run the module of `slot` on its input, recording a graph if `with_graph`; a hidden input
    becomes the leaf of the graph."""
    x = given.x
    with torch.set_grad_enabled(with_graph):
        leaf = x.detach().requires_grad_(with_graph) if x.is_floating_point() else None
        output = slot.module(x if leaf is None else leaf, given.begins, given.tokens)
        return Graph(leaf, output)


def run_loss(
    replica: Replica, slot: Slot, given: StageInput, targets: Tensor
) -> tuple[Graph, Tensor]:
    """Run the last stage forward; return the graph, whose output is what is run back, and the
    summed loss.

    Args:
        replica: computes.
        slot: parameters of the step.
        given: input of the stage.
        targets: (B, T) int64.
    """
    stage, x = slot.module, given.x
    leaf = x.detach().requires_grad_() if x.is_floating_point() else None
    with stage.computing(x.device):
        loss, whole = losses(
            stage,
            stage.hidden(x if leaf is None else leaf, given.begins, given.tokens),  # (B, T, C)
            targets,
            z_weight=replica.trained_by.z_loss,
            weight=replica.loss_weight,
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


def run_backward(
    replica: Replica, slot: Slot, graph: Graph, output: Tensor, gradient: Tensor | None, of: Of
) -> list[memoryview]:
    """Fill `flat.gradients` with the gradient of this pass alone; return the encoded input
    gradient, if there is one.

    Args:
        replica: computes.
        slot: parameters and buffers of the step.
        graph: of the forward.
        output: of the forward.
        gradient: of the output; None if the output is the loss.
        of: the step and the microbatch.

    Raises:
        PoisonedTensor: a gradient is not finite or of absurd magnitude.
    """
    return run_back(replica, slot, [(graph, output, gradient)], of)


def run_back(
    replica: Replica,
    slot: Slot,
    passes: Iterable[tuple[Graph, Tensor, Tensor | None]],
    of: Of,
    like: Buffer | None = None,
) -> list[memoryview]:
    """As `run_backward`, over slices of the sequences.

    Args:
        replica: computes.
        slot: parameters and buffers of the step.
        passes: graph, output and gradient of each slice in turn.
        of: the step and the microbatch.
        like: an input gradient that another replica has sent of the same; as `encode` takes it.
    """
    slot.zero_gradients()
    of_inputs = []
    for graph, output, gradient in passes:
        whole: Tensor = output
        if gradient is not None:
            whole = _Given.apply(output, gradient)  # type: ignore[no-untyped-call]
        torch.autograd.backward(whole)
        if graph.leaf is not None and graph.leaf.grad is not None:
            of_inputs.append(graph.leaf.grad)
    if not slot.gradients_within(LARGEST_GRADIENT):
        raise PoisonedTensor("the gradient of the parameters is not finite or of absurd magnitude")
    if not of_inputs:
        return []
    return [replica.wire.boundary_out(replica.team.joined(of_inputs), "backward", like, of)]


def _forward_and_back(
    replica: Replica,
    slot: Slot,
    given: StageInput,
    gradient: Tensor,
    of: Of,
    claimed: Payloads = (),
) -> list[memoryview]:
    """Run a stage that is not the last forward and back from its input; as `run_again`."""
    outputs: list[Tensor] = []

    def passes() -> Iterator[tuple[Graph, Tensor, Tensor | None]]:
        for part in parts_of(replica):
            graph = run_forward(slot, given[part], with_graph=True)
            if claimed:
                outputs.append(graph.output.detach())
            yield graph, graph.output, gradient[part]

    sent_back = run_back(replica, slot, passes(), of, claimed[1] if claimed[1:] else None)
    if not claimed:
        return sent_back
    output = replica.team.joined(outputs)
    return [replica.wire.boundary_out(output, "forward", claimed[0]), *sent_back]


def with_samples(
    replica: Replica, microbatch: int, payloads: Payloads, place: int
) -> tuple[Payloads, list[memoryview]]:
    """Payloads with the tokens at `place`, read from the corpus if they were not sent."""
    if replica.samples is None or len(payloads) != place:
        return payloads, []
    tokens = memoryview(replica.samples.read(microbatch))
    return [*payloads, tokens], [tokens]


def loss_and_gradient(
    replica: Replica,
    slot: Slot,
    request: ForwardBackward | Pass,
    payloads: Payloads,
    like: Buffer | None = None,
) -> tuple[float, list[memoryview]]:
    """Run the last stage forward and back; return the summed loss, the gradient of its input.

    Where not all targets are learned the loss is the mean over those that are, times all.

    Args:
        replica: computes.
        slot: parameters and buffers of the step.
        request: names the microbatch.
        payloads: the input, unless the stage is the first one as well.
        like: an input gradient that another replica has sent of the same; as `encode` takes it.
    """
    if not replica.part.has_head:
        raise ShapeError("only the last stage computes a loss")
    tokens: Buffer = request.tokens
    if replica.samples is not None:
        tokens = replica.samples.read(request.microbatch)
    targets = replica.wire.tokens_in(tokens)[1]  # (B, T)
    if replica.part.embeds:
        exactly(payloads, 0)
        given = stage_input(replica, tokens, 0)
    else:
        (payload,) = exactly(payloads, 1)
        given = stage_input(replica, payload, 0, tokens)
    if isinstance(request, ForwardBackward):
        _check_size(replica, given.x, request.microbatch)

    share = shown_share(targets)

    def run() -> tuple[float, list[memoryview]]:
        found: list[float] = []

        def passes() -> Iterator[tuple[Graph, Tensor, Tensor | None]]:
            for part in parts_of(replica):
                graph, loss = run_loss(replica, slot, given[part], targets[part])
                whole = graph.output
                if not replica.team.agreed(bool(whole <= LARGEST_LOSS)):
                    raise PoisonedTensor("the loss is not finite or of absurd magnitude")
                found.append(loss.item())
                yield graph, whole, None

        gradient = run_back(replica, slot, passes(), (request.step, request.microbatch), like)
        return replica.team.summed(sum(found)) * share, gradient

    return within_memory(replica, run)


def _only_inner(replica: Replica) -> None:
    if replica.part.has_head:
        raise ShapeError("the last stage runs forward and backward in one request")


def exactly(payloads: Payloads, count: int) -> Payloads:
    if len(payloads) != count:
        raise ShapeError(f"{count} payloads were expected, not {len(payloads)}")
    return payloads
