"""A module's trained parameters as one flat fp32 buffer, and its gradients as another.

The optimizer, the hash of a version, averaging between replicas and checkpoints then work on two
tensors instead of hundreds. Every replica of a stage has the same layout: the one of
`model_zoo.specs.state`, what decays first (matrices), all other parameters after that.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model_zoo.specs.state import decays, section_order
from model_zoo.vectors import Vectors


@dataclass(frozen=True, slots=True)
class Segment:
    """One parameter's place in the flat buffers: elements [offset, offset + size)."""

    name: str
    offset: int
    size: int
    shape: torch.Size


class FlatParameters:
    """Takes over a module's parameters; the module goes on working on views of the buffers.

    Attributes:
        values: all parameters that are trained, (N,) fp32, contiguous, on the module's device.
        gradients: their gradients, (N,) fp32; autograd adds to it in place.
        home: where the gradients lie.
        decay_size: the first so many elements belong to matrices and are decayed.
        layout: the segments in order; together they cover the buffers without gaps.

    Args:
        gradients: the buffer (N,) to use for the gradients, that of another module like this one:
            then only one of them may run back at a time, from `zero_gradients` on.
        home: where the gradients lie; None: where the module does.

    Do not move the module to another device afterwards: that would part it from the buffers.
    """

    def __init__(
        self, module: nn.Module, gradients: Tensor | None = None, home: Vectors | None = None
    ) -> None:
        named = {name: each for name, each in module.named_parameters() if each.requires_grad}
        order = section_order({name: parameter.shape for name, parameter in named.items()})
        self.layout = _segments([(name, named[name]) for name in order])
        decayed = (each for name, each in named.items() if decays(name, each.shape))
        self.decay_size = sum(each.numel() for each in decayed)
        total = sum(segment.size for segment in self.layout)
        device = next(iter(named.values())).device
        self.values = torch.empty(total, dtype=torch.float32, device=device)
        self.home = Vectors(device) if home is None else home
        self.gradients = self.home.zeros(total) if gradients is None else gradients
        self._bound = [(named[s.name], s) for s in self.layout]
        with torch.no_grad():
            for parameter, segment in self._bound:
                view = self._view(self.values, segment)
                view.copy_(parameter)
                parameter.data = view
        if self.home.offloaded:
            self._take_each_gradient()
        self.zero_gradients()

    def zero_gradients(self) -> None:
        """Set all gradients to zero and make sure that autograd adds to the flat buffer.

        Never sets them to None: autograd would then allocate gradients of its own. Where the buffer
        is offloaded it shall, and each is added to the buffer as soon as it is complete.
        """
        self.gradients.zero_()
        for parameter, segment in self._bound:
            offloaded = self.home.offloaded
            parameter.grad = None if offloaded else self._view(self.gradients, segment)

    def _take_each_gradient(self) -> None:
        """Add each gradient to the buffer when autograd has completed it, and free it."""
        for bound, segment in self._bound:

            def take(parameter: Tensor, segment: Segment = segment) -> None:
                home = self._view(self.gradients, segment)
                if parameter.grad is not None:
                    home.add_(parameter.grad.to(home.device))
                parameter.grad = None

            bound.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]

    def bind(self, module: nn.Module, values: Tensor) -> None:
        """Let a module like this one work on views of other values, (N,), which stay where they
        are."""
        named = dict(module.named_parameters())
        for segment in self.layout:
            named[segment.name].data = self._view(values, segment)

    def state(self) -> dict[str, Tensor]:
        """The parameters by global name, as views of `values`."""
        return {s.name: self._view(self.values, s) for s in self.layout}

    @staticmethod
    def _view(buffer: Tensor, segment: Segment) -> Tensor:
        return buffer.narrow(0, segment.offset, segment.size).view(segment.shape)


def _segments(named: list[tuple[str, nn.Parameter]]) -> tuple[Segment, ...]:
    segments, offset = [], 0
    for name, parameter in named:
        segments.append(Segment(name, offset, parameter.numel(), parameter.shape))
        offset += parameter.numel()
    return tuple(segments)
