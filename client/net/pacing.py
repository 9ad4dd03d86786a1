"""Limits the rate of sending and receiving: one token bucket per direction, for all links.

Tensors wait for their turn, and the background lane waits for tensors (``Yielding``). Small
messages (heartbeats, plans, receipts) are sent immediately and charged to the tensors behind them,
so that a slow line never looks like a dead one; only a flood of them is held to the same rate.
Receiving is paced by giving the peer's tensor lane its window back more slowly: the socket is
always read, so nothing small waits behind a tensor there either.

State: the buckets. Without a limit nothing waits.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import trio

from protocol.token_bucket import TokenBucket

BURST_S = 0.25
"""Unused capacity of at most this long may be used at once."""
MIN_BURST_BYTES = 256 * 1024
"""Most bytes of one write on a tensor lane."""
SMALL_BURST_BYTES = 1024 * 1024
"""Bytes of small messages that are sent in a row before they wait, too."""
BACKGROUND_SHARE = 1 / 4
"""Share of the bytes sent while tensors wait."""
BACKGROUND_CREDIT_BYTES = 256 * 1024
"""Bound of the unused and the overdrawn share (except for one larger piece)."""
BACKGROUND_WAIT_S = 1.0

Pace = Callable[[int], Awaitable[None]]
"""Waits until a number of bytes may be sent."""


@dataclass(frozen=True)
class Rates:
    """Most bytes per second each way; 0: no limit."""

    upload_bytes_per_s: int = 0
    download_bytes_per_s: int = 0


class Yielding:
    """Transfers of state to newcomers yield to the tensors of training, on any link.

    While tensors wait to be written, the background gets a quarter of the bytes sent; otherwise it
    gets the whole line. So a transfer progresses on a line that training fills, and training on a
    line that newcomers fill. A tensor for a stopped peer delays the background by a second per
    piece at most.

    State: the number of lanes that write tensors, and the bytes that the background may send
    (negative: it is ahead). Its unit is bytes, so it needs no rate. One object per direction of a
    network, used from one trio thread.
    """

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
        earned = self._credit_bytes + size_bytes * BACKGROUND_SHARE / (1 - BACKGROUND_SHARE)
        self._credit_bytes = min(earned, BACKGROUND_CREDIT_BYTES)
        if self._credit_bytes > 0:
            self._changed.unpark_all()

    async def wait(self, size_bytes: int) -> None:
        """Wait until a background piece may be sent."""
        with trio.move_on_after(BACKGROUND_WAIT_S):
            while self._tensors and self._credit_bytes <= 0:
                await self._changed.park()
        if self._tensors:
            # Bytes sent after a stalled tensor's delay do not count against the other transfers.
            most_debt = max(size_bytes, BACKGROUND_CREDIT_BYTES)
            self._credit_bytes = max(self._credit_bytes - size_bytes, -most_debt)


class Pacer:
    """One direction; ``lanes`` says how each lane is paced."""

    def __init__(self, rate_bytes_per_s: int) -> None:
        self._yielding = Yielding()
        self.lanes: Mapping[str, Pace] = {
            "control": self._pass,
            "bulk": self._tensor,
            "background": self._background,
        }
        self.limit(rate_bytes_per_s)

    def limit(self, rate_bytes_per_s: int) -> None:
        """Take another limit from now on; 0: none."""
        self.rate_bytes_per_s = rate_bytes_per_s
        rate, now = max(1, rate_bytes_per_s), trio.current_time()
        self._all = TokenBucket(rate, max(MIN_BURST_BYTES, BURST_S * rate), now)
        self._small = TokenBucket(rate, max(SMALL_BURST_BYTES, rate), now)

    def writing(self, lane: str) -> AbstractContextManager[None]:
        """Encloses a write on a lane: the background yields to tensors."""
        return self._yielding.tensors_wait() if lane == "bulk" else nullcontext()

    async def _tensor(self, size_bytes: int) -> None:
        self._yielding.sent(size_bytes)
        await self._wait_turn(size_bytes)

    async def _background(self, size_bytes: int) -> None:
        await self._yielding.wait(size_bytes)
        await self._wait_turn(size_bytes)

    async def _wait_turn(self, size_bytes: int) -> None:
        if self.rate_bytes_per_s:
            await trio.sleep(self._all.reserve(size_bytes, trio.current_time()))

    async def _pass(self, size_bytes: int) -> None:
        if not self.rate_bytes_per_s:
            return
        now = trio.current_time()
        self._all.reserve(size_bytes, now)
        if (wait_s := self._small.reserve(size_bytes, now)) > 0:
            await trio.sleep(wait_s)
