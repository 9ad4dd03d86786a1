"""Messages between two seats of this volunteer, which do not use the network.

A queue and the task that drains it, so that a seat is never called while another one acts. The
queue is not bounded itself; the window of microbatches in flight bounds its length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from protocol.wire.messages import Message

Deliver = Callable[[Message, bytes], None]


class Loopback:
    """Delivers in order, each message in a turn of its own of the event loop."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._queue: deque[tuple[Message, bytes]] = deque()
        self._some = trio.Event()
        self.delivered_bytes = 0

    def put(self, message: Message, payload: bytes) -> None:
        """Queue a message to ourselves."""
        self._queue.append((message, payload))
        self._some.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._some.wait()
            self._some = trio.Event()
            while self._queue:
                message, payload = self._queue.popleft()
                self.delivered_bytes += len(payload)
                self._deliver(message, payload)
                await trio.lowlevel.checkpoint()
