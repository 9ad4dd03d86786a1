"""Bytes between the host and a device, on a stream of their own where the device has streams.

On an NVIDIA GPU memory of the host is pinned, so that copies run beside computing: torch keeps
pinned memory for the next time, and does not give it out again before the copy is over. On the
processor and on Apple's GPUs copies are plain. State: a stream for each device.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

_PIECE_BYTES = 8 << 20
"""Of a payload that is pinned at a time, while the piece before is on its way."""


class Lane:
    """The way to a device and back; made by `lane_to`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        on_card = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_card else None  # type: ignore[no-untyped-call]

    def host_bytes(self, count: int) -> Tensor:
        """Return memory of the host, (count,) uint8, that `to_host` may write to."""
        return torch.empty(count, dtype=torch.uint8, pin_memory=self._stream is not None)

    def to_host(self, source: Tensor, target: Tensor) -> None:
        """Copy bytes of the device into part of `host_bytes`; they are there after `mark`.

        ``source`` may be forgotten, and must not be changed.
        """
        if self._stream is None:
            target.copy_(source)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)

    def to_device(self, source: Tensor) -> Tensor:
        """Return bytes of the host, (N,) uint8, on the device; what is computed next waits for
        them."""
        if self._stream is None:
            return source.to(self._device)
        computing = torch.cuda.current_stream(self._device)
        target = torch.empty(len(source), dtype=torch.uint8, device=self._device)
        self._stream.wait_stream(computing)  # its memory may have been in use until now
        parts = (torch.split(whole, _PIECE_BYTES) for whole in (source, target))
        for piece, place in zip(*parts, strict=True):
            pinned = self.host_bytes(len(piece)).copy_(piece)
            with torch.cuda.stream(self._stream):
                place.copy_(pinned, non_blocking=True)
        target.record_stream(self._stream)
        computing.wait_stream(self._stream)
        return target

    def mark(self) -> Callable[[], None]:
        """Return what waits, in any thread, until everything that was copied to the host by now is
        there."""
        if self._stream is None:
            return lambda: None
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        waits: Callable[[], None] = event.synchronize
        return waits


@cache
def lane_to(device: torch.device) -> Lane:
    """Return the lane to a device."""
    return Lane(device)


def on_stream(stream: "torch.cuda.Stream | None") -> AbstractContextManager[object]:
    """Have a block's work done on a GPU's stream; None: torch is asked for none, for it would wake
    an idle GPU, and fail where Apple's are."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)
