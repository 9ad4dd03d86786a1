"""The interface of all optimizers of the zoo: an update of one flat parameter buffer.

Replicas of a stage run this on different machines and must end with the same bits. Therefore
every tensor operation of an update is a single addition, multiplication, division or square root,
which IEEE 754 rounds one way only; combined operations (`lerp`, `addcmul`, `add` with alpha) are
fused on some machines and not on others. Running through the buffers in pieces that stay in the
cache pays for the additional passes.

Shapes: N parameters of the stage.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from model_zoo.specs.matrices import Matrix
from model_zoo.specs.optimizer import OPTIMIZERS, OptimizerSpec
from model_zoo.vectors import Vectors


class FlatOptimizer(ABC):
    """An update with decoupled weight decay, in place on one flat parameter buffer.

    Attributes:
        values: parameters (N,) fp32, maybe shared with the model; `decay_size` leading ones decay.
        vectors: what is kept between steps, (N,) fp32 each, as `specs.optimizer` lists it.
        steps_done: updates applied so far.
        alone: whether no other replica has to make the same bits.

    Args:
        values: parameters, (N,) fp32.
        decay_size: how many leading ones decay.
        spec: name and constants.
        matrices: the matrices of the stage's layers in the buffer, in order.
        home: where its vectors lie; None: where the parameters do.
    """

    def __init__(
        self,
        values: Tensor,
        decay_size: int,
        spec: OptimizerSpec,
        matrices: tuple[Matrix, ...] = (),
        home: Vectors | None = None,
    ) -> None:
        self.values = values
        self.matrices = matrices
        self.decay_size = decay_size
        self.spec = spec
        self.home = Vectors(values.device) if home is None else home
        self.vectors = tuple(self.home.zeros(values.numel()) for _ in OPTIMIZERS[spec.name].vectors)
        self.steps_done, self.alone = 0, False
        size = min(self.home.chunk, values.numel())
        self._scratch = torch.empty(2, size, device=self.home.device)

    def step(self, gradient: Tensor, lr: float, scale: float = 1.0) -> None:
        """Apply one update.

        Args:
            gradient: (N,) fp32, not changed.
            lr: learning rate.
            scale: factor of the gradient.
        """
        self.steps_done += 1
        self.decay(lr)
        self.sweep(gradient, lr, scale, 0, self.values.numel())

    def decay(self, lr: float) -> None:
        """Decay the weights that decay."""
        for (part,) in self.home.pieces([self.values[: self.decay_size]]):
            part.mul_(1 - lr * self.spec.weight_decay)

    def sweep(self, gradient: Tensor, lr: float, scale: float, start: int, end: int) -> None:
        """Update the elements from ``start`` to ``end``, a piece at a time.

        Args:
            gradient, lr, scale: as in `step`.
            start, end: a stretch of the buffers.
        """
        changed = [buffer[start:end] for buffer in (self.values, *self.vectors)]
        for p, *kept, g in self.home.pieces(changed, [gradient[start:end]]):
            a, b = self._scratch[0, : p.numel()], self._scratch[1, : p.numel()]
            torch.mul(g, scale, out=a)
            self.update(p, a, kept, lr, b)

    @abstractmethod
    def update(
        self, values: Tensor, gradient: Tensor, kept: Sequence[Tensor], lr: float, scratch: Tensor
    ) -> None:
        """Update a piece of the parameters and of the optimizer's vectors in place.

        Args:
            values: parameters, after weight decay.
            gradient: of the mean loss; it may be changed.
            kept: the same piece of every vector of the optimizer.
            lr: learning rate.
            scratch: working memory of the same length.
        """


def flat_optimizer(spec: OptimizerSpec) -> type[FlatOptimizer]:
    """Return the optimizer of a run. Only what is registered is imported."""
    assert spec.name in OPTIMIZERS  # as every spec
    found: type[FlatOptimizer] = import_module(f"model_zoo.optimizers.{spec.name}").OPTIMIZER
    return found


def square_root(x: Tensor, out: Tensor) -> None:
    """Correctly rounded square root.

    On CPUs torch may hand it to a vector library that misses the last bit of one value in five,
    and promises no machine the same misses; NumPy uses the processor's own instruction.
    """
    if x.device.type == "cpu":
        np.sqrt(x.numpy(), out=out.numpy())
    else:
        torch.sqrt(x, out=out)
