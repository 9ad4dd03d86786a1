"""AdamW on flat buffers, and the clip factor.

Replicas of a stage run this on different machines and must end with the same bits. Therefore
every tensor operation here is a single addition, multiplication, division or square root, which
IEEE 754 rounds one way only; combined operations (`lerp`, `addcmul`, `add` with alpha) are fused
on some machines and not on others. Running through the buffers in pieces that stay in the cache
pays for the additional passes.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from model_zoo.specs.optimizer import OptimizerSpec

_CPU_CHUNK = 1 << 18  # elements: small enough for the caches, large enough to hide call costs
_DEVICE_CHUNK = 1 << 24  # elements: on a GPU only the scratch memory has to be bounded


def clip_factor(gradient: Tensor, scale: float, largest_norm: float) -> float:
    """What to multiply a flat gradient with: `scale`, lowered so that the norm is in bounds.

    Args:
        gradient: (N,) fp32.
        scale: the factor wanted for other reasons, such as one over the step's tokens.
        largest_norm: bound on the norm of scale * gradient; 0 means none.

    The sum runs in fp64 and the result is rounded to fp32, so that machines that add in another
    order find the same factor.

    Raises:
        FloatingPointError: the gradient holds NaN or infinity.
    """
    squares = 0.0
    for (piece,) in _pieces(gradient):
        wide = piece.double()
        squares += torch.dot(wide, wide).item()
    norm = scale * math.sqrt(squares)
    if not math.isfinite(norm):
        raise FloatingPointError("the gradient is not finite")
    if largest_norm > 0:
        scale *= min(1.0, largest_norm / (norm + 1e-6))  # 1e-6 as torch's clip_grad_norm_
    return torch.tensor(scale, dtype=torch.float32).item()


class FlatAdamW:
    """Adam with decoupled weight decay, in place on one flat parameter buffer.

    Attributes:
        values: parameters (N,) fp32, shared with the model; `decay_size` leading ones decay.
            Another buffer as long, on the same device, may be put in its place between steps.
        first_moment, second_moment: running means of g and g*g, (N,) fp32.
        steps_done: updates applied so far.

    Source: Loshchilov & Hutter, arXiv 1711.05101, algorithm 2, as in torch.optim.AdamW.
    """

    def __init__(self, values: Tensor, decay_size: int, config: OptimizerSpec) -> None:
        self.values = values
        self.decay_size = decay_size
        self.config = config
        self.first_moment = torch.zeros_like(values)
        self.second_moment = torch.zeros_like(values)
        self.steps_done = 0
        self._scratch = values.new_empty((2, min(_chunk_size(values), values.numel())))

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """What is kept between steps, (N,) each, as `specs.optimizer` lists it."""
        return self.first_moment, self.second_moment

    def step(self, gradient: Tensor, lr: float, scale: float = 1.0) -> None:
        """Apply one update with scale * gradient; the gradient (N,) fp32 is left as it is."""
        self.steps_done += 1
        self.values[: self.decay_size].mul_(1 - lr * self.config.weight_decay)
        buffers = (self.values, gradient, self.first_moment, self.second_moment)
        for p, g, m, v in _pieces(*buffers):
            self._update(p, g, m, v, lr, scale)

    def _update(self, p: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: float, scale: float) -> None:
        config, steps = self.config, self.steps_done
        a, b = self._scratch[0, : p.numel()], self._scratch[1, : p.numel()]
        torch.mul(g, scale, out=a)  # a = gradient
        torch.mul(a, 1 - config.beta1, out=b)
        m.mul_(config.beta1).add_(b)
        a.mul_(a).mul_(1 - config.beta2)
        v.mul_(config.beta2).add_(a)
        _square_root(v, out=a)
        a.mul_(1 / math.sqrt(1 - config.beta2**steps)).add_(config.eps)  # a = denominator
        torch.div(m, a, out=b)
        p.add_(b.mul_(-lr / (1 - config.beta1**steps)))


def _square_root(x: Tensor, out: Tensor) -> None:
    """Correctly rounded square root.

    On CPUs torch may hand it to a vector library that misses the last bit of one value in five,
    and promises no machine the same misses; NumPy uses the processor's own instruction.
    """
    if x.device.type == "cpu":
        np.sqrt(x.numpy(), out=out.numpy())
    else:
        torch.sqrt(x, out=out)


def _chunk_size(buffer: Tensor) -> int:
    return _CPU_CHUNK if buffer.device.type == "cpu" else _DEVICE_CHUNK


def _pieces(*buffers: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same stretch of every buffer, a chunk at a time."""
    chunk = _chunk_size(buffers[0])
    return zip(*(torch.split(buffer, chunk) for buffer in buffers), strict=True)
