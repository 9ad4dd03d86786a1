"""Sharing a relay's rate among those who send: fair queueing before one token bucket.

Identities cost nothing, so addresses share: the members of one prefix divide what that gets, and a
member without one is by itself. How many circuits they have does not count, and while only one
wants to send, it gets the whole rate: so no further limit of a member or of a circuit is needed.
A sender lets one piece wait, whatever its circuits: its neighbours wait for one of each sender.
Pieces are served by start tags (Goyal, Vin and Cheng, "Start-time fair queueing", 1996,
section 2): unlike round-robin with deficits, this is fair to one that has only one small piece
waiting at a time.

State: the pieces that wait, and the tags; the tokens.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

import trio

from protocol.ids import PeerId
from protocol.token_bucket import TokenBucket

MAX_PIECE_BYTES: Final = 64 * 1024
BURST_S: Final = 0.1
"""Seconds of the rate that may be sent at once."""

Sender = tuple[PeerId, str]
"""Who sends, and whose share that comes out of: its prefix, or itself."""


class Shares:
    """See the module's docstring; without a limit until ``limit``."""

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None
        self._senders: WeakValueDictionary[PeerId, trio.Lock] = WeakValueDictionary()
        self._numbers = count()
        self._waiting: list[tuple[float, int, int, trio.Event]] = []
        """A heap of pieces: start tag (the bytes that its share has had before), number, bytes,
        and what is set when it is its turn."""
        self._came = trio.Event()
        self._had: dict[str, float] = {}
        """Bytes that each share has had once its pieces are sent, where that is more than
        ``_virtual``."""
        self._virtual = 0.0
        """Start tag of the piece that was granted last."""

    def limit(self, rate_bytes_per_s: float) -> None:
        """Take another rate of all circuits together from now on; 0: no limit."""
        burst_bytes = max(MAX_PIECE_BYTES, BURST_S * rate_bytes_per_s)
        bucket = TokenBucket(rate_bytes_per_s, burst_bytes, trio.current_time())
        self._bucket = bucket if rate_bytes_per_s else None

    async def turn(self, sender: Sender, size_bytes: int) -> None:
        """Wait until a piece of at most ``MAX_PIECE_BYTES`` may be sent."""
        peer, share = sender
        async with self._senders.setdefault(peer, trio.Lock()):
            start = max(self._virtual, self._had.get(share, 0.0))
            self._had[share] = start + size_bytes
            piece = start, next(self._numbers), size_bytes, trio.Event()
            heappush(self._waiting, piece)
            self._came.set()
            try:
                await piece[-1].wait()
            except trio.Cancelled:  # its circuit has ended; its sender has had its bytes
                self._waiting = [other for other in self._waiting if other is not piece]
                heapify(self._waiting)
                raise

    async def run(self) -> None:
        """Let pieces be sent when it is their turn, until cancelled."""
        while True:
            if not self._waiting:
                self._came = trio.Event()
                await self._came.wait()
            else:
                self._virtual, _, size_bytes, granted = heappop(self._waiting)
                self._had = {one: had for one, had in self._had.items() if had > self._virtual}
                granted.set()
                if self._bucket is not None:
                    await trio.sleep(self._bucket.reserve(size_bytes, trio.current_time()))
