"""Muon: the momentum of every matrix of a layer is made orthogonal; all else moves by signs."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from model_zoo.optimizers.newton_schulz import orthogonal, roughly_orthogonal
from model_zoo.optimizers.optimizer import FlatOptimizer
from model_zoo.specs.matrices import Matrix, between

USUAL_SIZE = 0.2
"""Root mean square of an update over the learning rate, about that of AdamW's updates, so that its
learning rates and weight decay can be used (Liu et al., arXiv 2502.16982, section 2.2)."""


class FlatMuon(FlatOptimizer):
    """Muon; keeps a running mean of g.

    Every replica makes the update of every matrix by itself. That needs no messages, and no replica
    has what another lacks; it is possible because the iteration has the same bits everywhere.
    Embedding, head, gains and shifts are updated as in Lion, with steps of `USUAL_SIZE`.

    Source: Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks".
    """

    def step(self, gradient: Tensor, lr: float, scale: float = 1.0) -> None:
        self.steps_done += 1
        self.decay(lr)
        for start, end in between(self.matrices, self.values.numel()):
            self.sweep(gradient, lr, scale, start, end)
        for matrix in self.matrices:
            self._update_matrix(matrix, gradient, lr, scale)

    def update(
        self, values: Tensor, gradient: Tensor, kept: Sequence[Tensor], lr: float, scratch: Tensor
    ) -> None:
        """See `FlatOptimizer`; of what is no matrix of a layer."""
        spec, (m,) = self.spec, kept
        torch.mul(m, spec.beta1, out=scratch)
        scratch.add_(gradient * (1 - spec.beta1)).sign_()
        values.add_(scratch.mul_(-lr * USUAL_SIZE))
        m.mul_(spec.beta2).add_(gradient.mul_(1 - spec.beta2))

    def _update_matrix(self, matrix: Matrix, gradient: Tensor, lr: float, scale: float) -> None:
        beta, part = self.spec.beta1, slice(matrix.offset, matrix.end)
        changed = self.values[part], self.vectors[0][part]
        for p, m, g in self.home.pieces(changed, [gradient[part]], whole=True):
            share = g.mul(scale).mul_(1 - beta)
            m.mul_(beta).add_(share)
            share.add_(m * beta)  # Nesterov's
            made = roughly_orthogonal if self.alone else orthogonal
            update = made(share.view(matrix.rows, matrix.columns)).flatten()
            update.mul_(-lr * factor(matrix.rows, matrix.columns))
            p.add_(update.to(torch.float32))


def factor(rows: int, columns: int) -> float:
    """An orthogonal matrix has the root mean square 1 / sqrt(larger side)."""
    return USUAL_SIZE * math.sqrt(max(rows, columns))


OPTIMIZER = FlatMuon
