"""Limits the rate of sending and receiving: one token bucket per direction, for all links.

Tensors wait for their turn; the background lane, and what is relayed for others, waits for tensors
(``Yielding``). Small
messages (heartbeats, plans, receipts) are sent immediately and charged to the tensors behind them,
so that a slow line never looks like a dead one; only a flood of them is held to the same rate.
Receiving is paced by giving the peer's tensor lane its window back more slowly: the socket is
always read, so nothing small waits behind a tensor there either.

State: the buckets. Without a limit nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import trio

BURST_S = 0.25
"""Unused capacity of at most this long may be used at once."""
MIN_BURST_BYTES = 256 * 1024
"""Most bytes of one write on a tensor lane."""
SMALL_BURST_BYTES = 1024 * 1024
"""Bytes of small messages that are sent in a row before they wait, too."""
WINDOW_S = 1.0
"""Seconds' worth of data, at our rate, that a peer may have in flight when receiving is limited."""
BACKGROUND_SHARE = 1 / 4
"""Share of the bytes sent while tensors wait."""
BACKGROUND_CREDIT_BYTES = 256 * 1024
"""Bound of the unused and the overdrawn share (except for one larger piece)."""
RELAYED_SHARE, RELAYED_CREDIT_BYTES = 1 / 20, 64 * 1024
"""The same of what is relayed for others: our own training loses less than a twentieth."""
BACKGROUND_WAIT_S = 1.0
"""Seconds without a piece of a tensor after which the line is taken to be free."""

Pace = Callable[[int], Awaitable[None]]
"""Waits until a number of bytes may be sent."""


@dataclass(frozen=True)
class Rates:
    """Most bytes per second each way; 0: no limit."""

    upload_bytes_per_s: int = 0
    download_bytes_per_s: int = 0


class TokenBucket:
    """A token bucket: a reservation of bytes returns the time to wait, in order of reservation.

    Bytes whose wait is over never exceed ``burst + rate * time``.

    Args:
        rate_bytes_per_s: rate of refilling.
        burst_bytes: capacity; the bucket starts full.
        now: monotonic seconds.
    """

    def __init__(self, rate_bytes_per_s: float, burst_bytes: float, now: float) -> None:
        self._rate, self._burst = rate_bytes_per_s, burst_bytes
        self._tokens, self._counted = burst_bytes, now

    def reserve(self, size_bytes: int, now: float) -> float:
        """Reserve bytes, perhaps on credit; return the seconds to wait for them."""
        earned = self._rate * max(0.0, now - self._counted)
        self._counted = max(now, self._counted)
        self._tokens = min(self._burst, self._tokens + earned) - size_bytes
        return max(0.0, -self._tokens / self._rate)


class Yielding:
    """What can wait yields to the tensors of training, on any link.

    While tensors wait to be written, it gets a share of the bytes sent; otherwise it gets the whole
    line. So a transfer progresses on a line that training fills, and training on a line that
    newcomers or others fill. A tensor of which nothing moves, as for a stopped peer, delays nobody
    for longer than a second.

    State: the number of lanes that write tensors, when a piece of one was last sent, and the bytes
    that may be sent beside them (negative: we are ahead). Its unit is bytes, so it needs no rate.
    One object per direction of a network and kind of traffic, used from one trio thread.

    Args:
        share: of the bytes sent while tensors wait.
        credit_bytes: bound of the unused and the overdrawn share.
    """

    def __init__(
        self, share: float = BACKGROUND_SHARE, credit_bytes: int = BACKGROUND_CREDIT_BYTES
    ) -> None:
        self._earned_per_byte, self._most_bytes = share / (1 - share), credit_bytes
        self._tensors = 0
        self._moved_at = -math.inf
        self._credit_bytes = 0.0
        self._changed = trio.lowlevel.ParkingLot()

    @contextmanager
    def tensors_wait(self) -> Iterator[None]:
        """Encloses the writing of a tensor, including its waits for windows and turns."""
        if not self._tensors:
            self._moved_at = trio.current_time()
        self._tensors += 1
        try:
            yield
        finally:
            self._tensors -= 1
            if not self._tensors:
                self._changed.unpark_all()

    def sent(self, size_bytes: int) -> None:
        """Note a piece of a tensor."""
        self._moved_at = trio.current_time()
        earned = self._credit_bytes + size_bytes * self._earned_per_byte
        self._credit_bytes = min(earned, self._most_bytes)
        if self._credit_bytes > 0:
            self._changed.unpark_all()

    async def wait(self, size_bytes: int) -> None:
        """Wait until a piece may be sent that can wait."""
        while self._tensors and self._credit_bytes <= 0 and not self._stands_still:
            with trio.move_on_at(self._moved_at + BACKGROUND_WAIT_S):
                await self._changed.park()
        if self._tensors:
            # Bytes sent after a stalled tensor's delay do not count against the other transfers.
            most_debt = max(size_bytes, self._most_bytes)
            self._credit_bytes = max(self._credit_bytes - size_bytes, -most_debt)

    @property
    def _stands_still(self) -> bool:
        return trio.current_time() >= self._moved_at + BACKGROUND_WAIT_S


class Pacer:
    """One direction; ``lanes`` says how each lane is paced, and what is relayed for others."""

    def __init__(self, rate_bytes_per_s: int) -> None:
        self.rate_bytes_per_s = rate_bytes_per_s
        rate, now = max(1, rate_bytes_per_s), trio.current_time()
        self._all = TokenBucket(rate, max(MIN_BURST_BYTES, BURST_S * rate), now)
        self._small = TokenBucket(rate, max(SMALL_BURST_BYTES, rate), now)
        self._yielding = Yielding()
        self._relaying = Yielding(RELAYED_SHARE, RELAYED_CREDIT_BYTES)
        limited = rate_bytes_per_s > 0
        self._turn = self._wait_turn if limited else _at_once
        self.lanes: Mapping[str, Pace] = {
            "control": self._pass if limited else _at_once,
            "bulk": self._tensor,
            "background": self._background,
            "relayed": self._relayed,
        }

    def writing(self, lane: str) -> AbstractContextManager[None]:
        """Encloses a write on a lane: the others yield to tensors."""
        return self._tensors_wait() if lane == "bulk" else nullcontext()

    def window_bytes(self, usual: int) -> int:
        """Return the bytes that a peer may have in flight in a tensor lane."""
        if not self.rate_bytes_per_s:
            return usual
        return min(usual, int(WINDOW_S * self.rate_bytes_per_s))

    @contextmanager
    def _tensors_wait(self) -> Iterator[None]:
        with self._yielding.tensors_wait(), self._relaying.tensors_wait():
            yield

    async def _tensor(self, size_bytes: int) -> None:
        self._yielding.sent(size_bytes)
        self._relaying.sent(size_bytes)
        await self._turn(size_bytes)

    async def _background(self, size_bytes: int) -> None:
        await self._yielding.wait(size_bytes)
        await self._turn(size_bytes)

    async def _relayed(self, size_bytes: int) -> None:
        await self._relaying.wait(size_bytes)
        await self._turn(size_bytes)

    async def _wait_turn(self, size_bytes: int) -> None:
        await trio.sleep(self._all.reserve(size_bytes, trio.current_time()))

    async def _pass(self, size_bytes: int) -> None:
        now = trio.current_time()
        self._all.reserve(size_bytes, now)
        if (wait_s := self._small.reserve(size_bytes, now)) > 0:
            await trio.sleep(wait_s)


class Pacing:
    """Both directions of a network."""

    def __init__(self, rates: Rates) -> None:
        self.upload = Pacer(rates.upload_bytes_per_s)
        self.download = Pacer(rates.download_bytes_per_s)


async def _at_once(size_bytes: int) -> None:
    """No limit."""
