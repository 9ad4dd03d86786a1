"""Forward and backward passes of one microbatch, each all or nothing.

A pass either answers and has counted its microbatch, or raises and has changed nothing but
scratch. Recomputing from the wire-form input gives the bits that the kept graph would give.

Shapes: B sequences, T tokens, C width, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from client.compute.errors import GraphGone, PoisonedTensor, ShapeError
from client.compute.payload import Buffer
from client.compute.replica import Graph, Replica
from client.compute.replies import BackwardDone, Dropped, Forwarded, LossComputed, Subtracted
from client.compute.requests import Backward, Drop, Forward, ForwardBackward, Subtract
from model_zoo.stages import summed_loss

Payloads = Sequence[Buffer]


def forward(
    replica: Replica, request: Forward, payloads: Payloads
) -> tuple[Forwarded, list[memoryview]]:
    """Run the stage; keep the graph if that is wanted and there is room."""
    replica.check_step(request.step)
    _only_inner(replica)
    payloads, tokens = _with_samples(replica, request.microbatch, payloads, 0)
    (payload,) = _exactly(payloads, 1)
    others = replica.graphs.keys() - {request.microbatch}
    keep = request.keep_graph and len(others) < replica.graphs_kept
    replica.graphs.pop(request.microbatch, None)
    graph = run_forward(replica, stage_input(replica, payload, 0), with_graph=keep)
    boundary = replica.wire.boundary_out(graph.output, "forward")
    if keep:
        replica.graphs[request.microbatch] = graph
    return Forwarded(graph_kept=keep), [boundary, *tokens]


def forward_backward(
    replica: Replica, request: ForwardBackward, payloads: Payloads
) -> tuple[LossComputed, list[memoryview]]:
    """Run the last stage, add its gradient, answer the loss and the gradient of its input."""
    replica.check_step(request.step)
    replica.check_counted(request.microbatch, counted=False)
    graph, loss = _loss(replica, request, payloads)
    gradient = run_backward(replica, graph, loss, None)
    _count(replica, request.microbatch)
    return LossComputed(loss_sum=loss.item(), tokens=replica.wire.token_count), gradient


def backward(
    replica: Replica, request: Backward, payloads: Payloads
) -> tuple[BackwardDone, list[memoryview]]:
    """Run the stage back from the kept graph, or from its input if that is given."""
    replica.check_step(request.step)
    replica.check_counted(request.microbatch, counted=False)
    _only_inner(replica)
    if not 1 <= len(payloads) <= 2:
        raise ShapeError(f"one or two payloads were expected, not {len(payloads)}")
    gradient = replica.wire.boundary_in(payloads[0], "backward", 0)
    graph = replica.graphs.get(request.microbatch)
    recompute = graph is None
    if graph is None:
        payloads, _ = _with_samples(replica, request.microbatch, payloads, 1)
        if len(payloads) == 1:
            raise GraphGone(f"the graph of microbatch {request.microbatch} was not kept")
        graph = run_forward(replica, stage_input(replica, payloads[1], 1), with_graph=True)
    replica.graphs.pop(request.microbatch, None)  # backward frees its tensors
    sent_back = run_backward(replica, graph, graph.output, gradient)
    _count(replica, request.microbatch)
    return BackwardDone(recomputed=recompute), sent_back


def subtract(
    replica: Replica, request: Subtract, payloads: Payloads
) -> tuple[Subtracted, list[memoryview]]:
    """Recompute a counted microbatch and take its gradient out again."""
    replica.check_step(request.step)
    replica.check_counted(request.microbatch, counted=True)
    if replica.part.has_head:
        graph, loss = _loss(replica, request, payloads)
        run_backward(replica, graph, loss, None)
    else:
        payloads, _ = _with_samples(replica, request.microbatch, payloads, 1)
        sent, given = _exactly(payloads, 2)
        gradient = replica.wire.boundary_in(sent, "backward", 0)
        graph = run_forward(replica, stage_input(replica, given, 1), with_graph=True)
        run_backward(replica, graph, graph.output, gradient)
    replica.gradient_sum.sub_(replica.flat.gradients)
    replica.counted.discard(request.microbatch)
    return Subtracted(), []


def drop(replica: Replica, request: Drop) -> tuple[Dropped, list[memoryview]]:
    """Free kept graphs; unknown microbatches are no error."""
    dropped = [replica.graphs.pop(microbatch, None) for microbatch in request.microbatches]
    return Dropped(graphs=len(dropped) - dropped.count(None)), []


def stage_input(replica: Replica, payload: Buffer, part: int) -> Tensor:
    """What the stage runs on: tokens (B, T) int64 on the first stage, else hidden (B, T, C)."""
    if replica.part.embeds:
        return replica.wire.tokens_in(payload)[0]
    return replica.wire.boundary_in(payload, "forward", part)


def run_forward(replica: Replica, x: Tensor, *, with_graph: bool) -> Graph:
    """Run the stage's module; a hidden input becomes the leaf of the graph."""
    with torch.set_grad_enabled(with_graph):
        leaf = x.requires_grad_(with_graph) if x.is_floating_point() else None
        return Graph(leaf, replica.module(x))


def run_backward(
    replica: Replica, graph: Graph, output: Tensor, gradient: Tensor | None
) -> list[memoryview]:
    """Fill `flat.gradients` with this pass alone; the encoded input gradient, if there is one.

    Raises:
        PoisonedTensor: a gradient is not finite.
    """
    replica.flat.zero_gradients()
    torch.autograd.backward(output, gradient)
    if not torch.isfinite(replica.flat.gradients.sum()):
        raise PoisonedTensor("the gradient of the parameters is not finite")
    if graph.leaf is None or graph.leaf.grad is None:
        return []
    return [replica.wire.boundary_out(graph.leaf.grad, "backward")]


def _with_samples(
    replica: Replica, microbatch: int, payloads: Payloads, place: int
) -> tuple[Payloads, list[memoryview]]:
    """Payloads with the tokens at `place`, read from the corpus if nobody brought them."""
    if replica.samples is None or len(payloads) != place:
        return payloads, []
    tokens = memoryview(replica.samples.read(microbatch))
    return [*payloads, tokens], [tokens]


def _loss(
    replica: Replica, request: ForwardBackward | Subtract, payloads: Payloads
) -> tuple[Graph, Tensor]:
    if not replica.part.has_head:
        raise ShapeError("only the last stage computes a loss")
    tokens: Buffer = request.tokens
    if replica.samples is not None:
        tokens = replica.samples.read(request.microbatch)
    inputs, targets = replica.wire.tokens_in(tokens)  # (B, T) each
    if replica.part.embeds:
        _exactly(payloads, 0)
        graph = run_forward(replica, inputs, with_graph=True)
    else:
        (payload,) = _exactly(payloads, 1)
        graph = run_forward(replica, stage_input(replica, payload, 0), with_graph=True)
    loss = summed_loss(graph.output, targets)  # (B, T, V) -> ()
    if not torch.isfinite(loss):
        raise PoisonedTensor("the loss is not finite")
    return graph, loss


def _count(replica: Replica, microbatch: int) -> None:
    replica.gradient_sum.add_(replica.flat.gradients)
    replica.counted.add(microbatch)


def _only_inner(replica: Replica) -> None:
    if replica.part.has_head:
        raise ShapeError("the last stage runs forward and backward in one request")


def _exactly(payloads: Payloads, count: int) -> Payloads:
    if len(payloads) != count:
        raise ShapeError(f"{count} payloads were expected, not {len(payloads)}")
    return payloads
