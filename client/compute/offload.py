"""Vectors of a stage in a GPU's host memory, pinned, where they do not fit beside the parameters.

They are copied to the device and back in pieces, on a stream of their own beside the computing. The
bits are the same as without: the same operations work on the same numbers.

An Apple GPU has no fp64, and its division and square root may round otherwise than IEEE 754. There
all vectors but the parameters lie in the memory that it shares with the processor, which makes the
updates: replicas on other machines have the same bits.

Shapes: as in `model_zoo.vectors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from client.compute.lane import on_stream
from client.compute.memory import OFFLOAD_WINDOW
from client.compute.requests import OpenStage
from model_zoo.vectors import Pieces, Vectors


def vectors_for(request: OpenStage, device: torch.device) -> Vectors:
    """Return where the vectors of a stage lie."""
    away = request.fit.offloaded_bytes or device.type == "mps"
    return host_vectors(device) if away else Vectors(device)


def host_vectors(device: torch.device) -> OffloadedVectors:
    """Return vectors in the memory of a GPU's host, and what makes the updates of them."""
    return OffloadedVectors(torch.device("cpu") if device.type == "mps" else device)


class OffloadedVectors(Vectors):
    """Vectors in the host's memory; ``device`` makes the updates."""

    offloaded = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.chunk = OFFLOAD_WINDOW
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def zeros(self, size: int) -> Tensor:
        """Return a new vector of zeros, (size,) fp32, on the CPU."""
        return torch.zeros(size, pin_memory=self._stream is not None)

    def pieces(
        self, changed: Sequence[Tensor], read: Sequence[Tensor] = (), *, whole: bool = False
    ) -> Pieces:
        """Yield the same piece of every vector on the device: the next one comes, and the last one
        goes back, while one is computed."""
        vectors, size = (*changed, *read), len(changed[0])
        ends = [*range(0, size, size if whole else self.chunk), size]
        parts = [tuple(vector[a:b] for vector in vectors) for a, b in pairwise(ends)]
        coming = self._fetch(parts[0]) if parts else ()
        for number, there in enumerate(parts):
            here = coming
            self._wait_for_copies(here)
            if number + 1 < len(parts):
                coming = self._fetch(parts[number + 1])
            yield here
            self._send_back(there[: len(changed)], here)
        if self._stream is not None:
            self._stream.synchronize()  # the host reads the vectors next

    def _fetch(self, there: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with on_stream(self._stream):
            return tuple(self._on_device(each) for each in there)

    def _on_device(self, there: Tensor) -> Tensor:
        """Return a copy on the device, or the tensor itself if it lies there."""
        return there.to(self.device, non_blocking=self._stream is not None)

    def _wait_for_copies(self, here: Sequence[Tensor]) -> None:
        if self._stream is None:
            return
        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self._stream)
        for each in here:  # its memory is not used again before the computing is done
            each.record_stream(computing)

    def _send_back(self, there: Sequence[Tensor], here: Sequence[Tensor]) -> None:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with on_stream(self._stream):
            for home, each in zip(there, here, strict=False):
                if home is not each:
                    home.copy_(each, non_blocking=True)
