"""Transfers of state to newcomers yield to the tensors of training, on any link.

While tensors wait to be written, the background gets a quarter of the bytes sent; otherwise it gets
the whole line. So a transfer progresses on a line that training fills, and training on a line that
newcomers fill.

State: the number of lanes that write tensors, and the bytes that the background may send (negative:
it is ahead). Its unit is bytes, so it needs no rate. A tensor for a stopped peer delays the
background by a second per piece at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

SHARE = 1 / 4
"""Share of the bytes sent while tensors wait."""
MOST_CREDIT_BYTES = 256 * 1024
"""Bound of the unused and the overdrawn share (except for one larger piece)."""
MOST_WAIT_S = 1.0


class Yielding:
    """One direction of a network; used from one trio thread."""

    def __init__(self) -> None:
        self._tensors = 0
        self._credit_bytes = 0.0
        self._changed = trio.lowlevel.ParkingLot()

    @contextmanager
    def tensors_wait(self) -> Iterator[None]:
        """Encloses the writing of a tensor, including its waits for windows and turns."""
        self._tensors += 1
        try:
            yield
        finally:
            self._tensors -= 1
            if not self._tensors:
                self._changed.unpark_all()

    def sent(self, size_bytes: int) -> None:
        """Note a piece of a tensor."""
        earned = self._credit_bytes + size_bytes * SHARE / (1 - SHARE)
        self._credit_bytes = min(earned, MOST_CREDIT_BYTES)
        if self._credit_bytes > 0:
            self._changed.unpark_all()

    async def wait(self, size_bytes: int) -> None:
        """Wait until a background piece may be sent."""
        with trio.move_on_after(MOST_WAIT_S):
            while self._tensors and self._credit_bytes <= 0:
                await self._changed.park()
        if self._tensors:
            # Bytes sent after a stalled tensor's delay do not count against the other transfers.
            most_debt = max(size_bytes, MOST_CREDIT_BYTES)
            self._credit_bytes = max(self._credit_bytes - size_bytes, -most_debt)
