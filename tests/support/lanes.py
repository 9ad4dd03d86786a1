"""The reading end of one lane without a connection: the test is the peer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import trio

from client.net.carrier import Carrier, CarrierHooks, Outgoing
from client.net.host import Connection
from client.net.pacing import Pacing, Rates
from client.net.queues import BoundedQueue
from client.net.unfinished import UnfinishedFrames
from client.net.windows import WindowBudget
from client.net.yamux_stream import Session, YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.wire.messages import Message


class Lane:
    """A carrier that reads one lane, and what came of it.

    Args:
        deliver_takes_s: how long the rest of the client takes for each message.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        name: str,
        *,
        download_bytes_per_s: int = 0,
        deliver_takes_s: float = 0.0,
    ) -> None:
        session = SimpleNamespace(
            closed=False,
            trip_s=0.1,
            budget=WindowBudget(0),
            reply=lambda frame: None,
            measure_trip=lambda: None,
        )
        self.stream = YamuxStream(cast(Session, session), 1)
        self.deliver_takes_s = deliver_takes_s
        self.delivered: list[bytes] = []
        """Payloads."""
        self.refused: RemoteProtocolError | None = None
        self.ended_at: float | None = None
        queue = BoundedQueue[Outgoing](1000, 10**6, lambda frame: frame.size_bytes)
        self._carrier = Carrier(
            cast(Connection, SimpleNamespace()),
            {"control": queue},
            CarrierHooks(
                deliver=self._deliver,
                refused=lambda error: None,
                up=lambda: None,
                admitted=trio.lowlevel.checkpoint,
                sent=lambda: None,
                relay=_no_circuits,
                moving=lambda answer: None,
            ),
            Pacing(Rates(download_bytes_per_s=download_bytes_per_s)),
            UnfinishedFrames(),
        )
        nursery.start_soon(self._run, name)

    async def send(self, data: bytes) -> None:
        """Put it there and wait until it has been taken."""
        self.stream.on_data(memoryview(data))
        while self.stream.buffered_bytes and self.refused is None:
            await trio.sleep(0.1)

    async def _deliver(self, message: Message, payload: bytes) -> None:
        if self.deliver_takes_s:
            await trio.sleep(self.deliver_takes_s)
        self.delivered.append(payload)

    async def _run(self, name: str) -> None:
        try:
            await self._carrier._read_frames(name, self.stream)
        except RemoteProtocolError as error:
            self.refused, self.ended_at = error, trio.current_time()


async def _no_circuits(connection: Connection, stream: YamuxStream) -> None:
    """Nothing is asked of a relay."""
