"""The loss of a last stage, in pieces where the logits of all tokens would be large.

Logits are tokens x vocabulary numbers, of which cross-entropy and its gradient need four copies: at
4 x 1024 tokens and a vocabulary of 128,256 that is 8.4 GB in fp32, more than the rest of a small
stage. So the head runs piece by piece: the gradient of each piece is worked out at once, while its
logits are there, and only the gradients of the hidden state and of the parameters are kept. That is
no more arithmetic than at once. Sums over tokens are made in another order.

Source of the idea: Hsu et al., arXiv 2410.10989, section 3.2 (fused linear cross-entropy).

Shapes: B sequences, T tokens, C width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from model_zoo.stages import Stage, losses_of


def losses_of_hidden(
    stage: Stage, hidden: Tensor, targets: Tensor, weight: float
) -> tuple[Tensor, Tensor]:
    """Return the summed loss, and what is run back, as `losses_of` does of the logits.

    Args:
        stage: the last one.
        hidden: (B, T, C).
        targets: (B, T) int64; `NO_TARGET` where nothing is learned.
        weight: of the loss, in what is run back.
    """
    at_once = max(1, stage.logits_at_once // stage.spec.vocab)
    if targets.numel() <= at_once:
        return losses_of(stage.project(hidden), targets, weight)
    trained = [each for each in stage.projecting if each.requires_grad]
    loss, whole = _InPieces.apply(  # type: ignore[no-untyped-call]
        hidden, targets, stage, at_once, weight, *trained
    )
    return loss, whole


class _InPieces(torch.autograd.Function):
    """Works out loss and gradients on the way forward; only scales these on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        targets: Tensor,
        stage: Stage,
        at_once: int,
        weight: float,
        *trained: Tensor,
    ) -> tuple[Tensor, Tensor]:
        wanted = any(ctx.needs_input_grad)
        of_hidden = torch.empty_like(hidden) if wanted else hidden
        of_trained = [torch.zeros_like(each) for each in trained] if wanted else []
        losses, wholes = [], []
        rows, flat = hidden.flatten(0, 1), targets.flatten()  # (B T, C), (B T,)
        for start in range(0, flat.numel(), at_once):
            piece = slice(start, start + at_once)
            with torch.set_grad_enabled(wanted):
                leaf = rows[piece].detach().requires_grad_(wanted)
                logits = stage.project(leaf[None])  # (1, piece, V)
                loss, whole = losses_of(logits, flat[piece][None], weight)
                del logits
            losses.append(loss.detach())
            wholes.append(whole.detach())
            if wanted:
                first, *others = torch.autograd.grad(whole, [leaf, *trained])
                of_hidden.flatten(0, 1)[piece] = first
                for total, part in zip(of_trained, others, strict=True):
                    total.add_(part)
        ctx.save_for_backward(of_hidden, *of_trained)
        summed = torch.stack(losses).sum()
        ctx.mark_non_differentiable(summed)
        return summed, torch.stack(wholes).sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # In place: each piece of memory as large as the head's matrix counts, and nothing runs a
        # loss back twice.
        of_hidden, *of_trained = (each.mul_(gradient) for each in ctx.saved_tensors)
        return of_hidden, None, None, None, None, *of_trained
