"""State on its way to a newcomer yields to the tensors of training, on whatever link they are.

While tensors wait to be written, what is lent of the line to the background is a quarter of what is
sent; when none wait, all of it. So a transfer goes on over a line that training fills, and training
over one that newcomers ask for much.

State: how many lanes are writing tensors, and what the background may send (negative: it has been
ahead). Its unit is bytes, so it needs no rate. A tensor that a stopped peer does not take holds the
background up for a second per piece at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

SHARE = 1 / 4
"""Share of the bytes sent while tensors wait."""
MOST_CREDIT_BYTES = 256 * 1024
"""Bound of unused and of overdrawn share (except for one larger piece)."""
MOST_WAIT_S = 1.0


class Yielding:
    """One direction of a network; used from one trio thread."""

    def __init__(self) -> None:
        self._tensors = 0
        self._credit_bytes = 0.0
        self._changed = trio.lowlevel.ParkingLot()

    @contextmanager
    def tensors_wait(self) -> Iterator[None]:
        """Around the writing of a tensor, waiting for its windows and turns included."""
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
        """Wait until a piece from the background may go."""
        with trio.move_on_after(MOST_WAIT_S):
            while self._tensors and self._credit_bytes <= 0:
                await self._changed.park()
        if self._tensors:
            # Bytes forced through beside a peer that takes nothing do not count against the others.
            most_debt = max(size_bytes, MOST_CREDIT_BYTES)
            self._credit_bytes = max(self._credit_bytes - size_bytes, -most_debt)
