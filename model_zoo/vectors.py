"""Where the vectors lie that are as long as a stage's parameters, and how an optimizer walks
through them.

Here they lie on the device that computes. `client.compute.offload` has others that keep them in a
GPU's host memory. All operations on them work on each element by itself, so the bits do not depend
on the pieces.

Shapes: N parameters of the stage.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_CPU_CHUNK = 1 << 18  # elements: small enough for the caches, large enough to hide call costs
_DEVICE_CHUNK = 1 << 24  # elements: on a GPU only the scratch memory has to be bounded

Pieces = Iterator[tuple[Tensor, ...]]


class Vectors:
    """Vectors on the device that computes.

    Attributes:
        device: the device.
        chunk: most elements of what `pieces` yields.
    """

    offloaded = False
    """Whether they lie elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.chunk = _CPU_CHUNK if device.type == "cpu" else _DEVICE_CHUNK

    def zeros(self, size: int) -> Tensor:
        """Return a new vector of zeros, (size,) fp32."""
        return torch.zeros(size, device=self.device)

    def pieces(
        self, changed: Sequence[Tensor], read: Sequence[Tensor] = (), *, whole: bool = False
    ) -> Pieces:
        """Yield the same piece of every vector on the device, one that fits the caches.

        Args:
            changed: vectors that are changed in place.
            read: vectors that are not; they come after the others.
            whole: yield them in one piece, however long they are.
        """
        vectors = (*changed, *read)
        size = len(vectors[0]) if whole else self.chunk
        return zip(*(torch.split(vector, size) for vector in vectors), strict=True)
