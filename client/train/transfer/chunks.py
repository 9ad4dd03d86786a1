"""Serves chunks to peers: each is read only when it can be sent.

A request of thirty bytes asks for two megabytes, so requests are queued, not chunks. Each asker is
served one chunk after the other: the next is read once the connection has taken the one before. All
askers together have a few places, each for one chunk in memory, and those that work has proven have
half of them to themselves; when an asker waits long for a place, the slowest reader loses its place
and its link, if it is slower than any line that can train.

State: by peer, the requests that wait and when its chunk was read.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from client.net.libp2p_network import Libp2pNetwork
from client.train.ports import Ports
from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.limits import CHUNK_BYTES
from protocol.wire.messages import ChunkRequest

PLACES = 16
"""Chunks in memory at a time: 32 MiB."""
MAX_ASKED = 64
"""Requests of one peer that wait: sixteen downloads of four at a time."""
FLOOD_POINTS = 5
IMPATIENT_S = 5.0
"""Wait for a place after which the slowest reader is checked."""
SLOW_BYTES_PER_S = 32 * 1024
"""A reader below this rate loses its place when others wait: 1/4 Mbit/s."""
JUDGED_AFTER_S = 10.0
"""A reader is not judged earlier."""


@dataclass(slots=True)
class _Asker:
    requests: OrderedDict[ChunkRequest, None] = field(default_factory=OrderedDict)
    reading_since: float | None = None
    """When its chunk was read; None: it waits for a place."""


class ChunkServer:
    """See the module's docstring. ``answer`` reads a chunk and sends it; ``is_new``: whether a peer
    has done no work, though work has proven others."""

    def __init__(
        self,
        ports: Ports,
        network: Libp2pNetwork,
        nursery: trio.Nursery,
        answer: Callable[[PeerId, ChunkRequest], Awaitable[None]],
        is_new: Callable[[PeerId], bool],
    ) -> None:
        self._ports, self._network, self._nursery = ports, network, nursery
        self._answer, self._is_new = answer, is_new
        self._askers: dict[PeerId, _Asker] = {}
        self._places = {new: trio.CapacityLimiter(PLACES // 2) for new in (False, True)}

    def ask(self, peer: PeerId, request: ChunkRequest) -> None:
        """Serve a chunk when it is this peer's turn; a repeated request is not served twice."""
        asker = self._askers.get(peer)
        if asker is None:
            asker = self._askers[peer] = _Asker()
            self._nursery.start_soon(self._serve, peer, asker)
        if request not in asker.requests and len(asker.requests) >= MAX_ASKED:
            self._ports.perform(Penalise(peer, "chunk-flood", FLOOD_POINTS))
            return
        asker.requests[request] = None

    def gone(self, peer: PeerId) -> None:
        """A link has ended."""
        if asker := self._askers.get(peer):
            asker.requests.clear()

    async def _serve(self, peer: PeerId, asker: _Asker) -> None:
        try:
            while asker.requests:
                places = self._places[self._is_new(peer)]
                await self._take_place(places, peer)
                try:
                    if asker.requests:  # its link may have ended while it waited
                        asker.reading_since = trio.current_time()
                        await self._answer(peer, asker.requests.popitem(last=False)[0])
                        await self._network.wait_sent(peer, "background")
                finally:
                    asker.reading_since = None
                    places.release_on_behalf_of(peer)
        finally:
            del self._askers[peer]

    async def _take_place(self, places: trio.CapacityLimiter, peer: PeerId) -> None:
        while True:
            with trio.move_on_after(IMPATIENT_S) as patience:
                await places.acquire_on_behalf_of(peer)
            if not patience.cancelled_caught:
                return
            await self._drop_slowest()

    async def _drop_slowest(self) -> None:
        """End the link of the slowest reader, if it is too slow."""
        now = trio.current_time()
        rates = {
            peer: (CHUNK_BYTES - self._network.unsent_bytes(peer, "background")) / held_s
            for peer, asker in self._askers.items()
            if asker.reading_since is not None
            and (held_s := now - asker.reading_since) > JUDGED_AFTER_S
        }
        slowest = min(rates, key=lambda peer: rates[peer], default=None)
        if slowest is not None and rates[slowest] < SLOW_BYTES_PER_S:
            await self._network.disconnect(slowest, "it takes too little while others wait")
