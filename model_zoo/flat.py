"""A module's trained parameters as one flat fp32 buffer, and its gradients as another.

The optimizer, the hash of a version, averaging between replicas and checkpoints then work on two
tensors instead of hundreds. Every replica of a stage has the same layout: the one of
`model_zoo.specs.state`, what decays first (matrices), all other parameters after that.
"""

import math

import torch
from torch import Tensor, nn

from model_zoo.specs.state import decays, section_order, size
from model_zoo.vectors import Vectors


class FlatParameters:
    """Takes over a module's parameters; the module goes on working on views of the buffers.

    Attributes:
        values: all parameters that are trained, (N,) fp32, contiguous, on the module's device.
        gradients: their gradients, (N,) fp32; autograd adds to it in place.
        home: where the gradients lie; by default where the module does.
        decay_size: the first so many elements belong to matrices and are decayed.
        layout: the parameters in order; together they cover the buffers without gaps.

    Args:
        gradients: the buffer (N,) to use for the gradients, that of another module like this one:
            then only one of them may run back at a time, from `zero_gradients` on.

    Do not move the module to another device afterwards: that would part it from the buffers.
    """

    def __init__(
        self, module: nn.Module, gradients: Tensor | None = None, home: Vectors | None = None
    ) -> None:
        named = {name: each for name, each in module.named_parameters() if each.requires_grad}
        order = section_order({name: parameter.shape for name, parameter in named.items()})
        self.layout = tuple((name, tuple(named[name].shape)) for name in order)
        decayed = (each for name, each in named.items() if decays(name, each.shape))
        self.decay_size = sum(each.numel() for each in decayed)
        total = size(self.layout)
        device = next(iter(named.values())).device
        self.values = torch.empty(total, dtype=torch.float32, device=device)
        self.home = Vectors(device) if home is None else home
        self.gradients = self.home.zeros(total) if gradients is None else gradients
        self._named = named
        with torch.no_grad():
            for name, view in self.views(self.values).items():
                view.copy_(named[name])
                named[name].data = view
        if self.home.offloaded:
            self._take_each_gradient()
        self.zero_gradients()

    def zero_gradients(self) -> None:
        """Set all gradients to zero and make sure that autograd adds to the flat buffer.

        Never sets them to None: autograd would then allocate gradients of its own. Where the buffer
        is offloaded it shall, and each is added to the buffer as soon as it is complete.
        """
        self.gradients.zero_()
        for name, view in self.views(self.gradients).items():
            self._named[name].grad = None if self.home.offloaded else view

    def _take_each_gradient(self) -> None:
        """Add each gradient to the buffer when autograd has completed it, and free it."""
        for name, view in self.views(self.gradients).items():

            def take(parameter: Tensor, home: Tensor = view) -> None:
                if parameter.grad is not None:
                    home.add_(parameter.grad.to(home.device))
                parameter.grad = None

            self._named[name].register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]

    def bind(self, module: nn.Module, values: Tensor) -> None:
        """Let a module like this one work on views of other values, (N,), which stay where they
        are."""
        named = dict(module.named_parameters())
        for name, view in self.views(values).items():
            named[name].data = view

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return what belongs to each parameter of a buffer (N,), by global name, as views."""
        found, start = {}, 0
        for name, shape in self.layout:
            elements = math.prod(shape)
            found[name] = buffer.narrow(0, start, elements).view(shape)
            start += elements
        return found
