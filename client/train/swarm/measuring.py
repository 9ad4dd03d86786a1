"""Measures lines: ours, which our advert tells, and those of the peers that we work with.

It sees every message sent and received, and passes large payloads to the meters of
``protocol.transfer.lines``. It decides nothing. State: the meters, and the payloads on their way.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from protocol.ids import PeerId
from protocol.membership.roster import Roster
from protocol.transfer.fetch import WINDOW
from protocol.transfer.lines import MIN_PAYLOAD_BYTES, LineMeter
from protocol.wire.messages import Chunk, ChunkRequest, Forward, Message, Receipt

MAX_PENDING: Final = 1024
BAND: Final = 2.5
"""A claim within this factor of what we have measured stands: two peers that download from one
donor each see half of its line."""

PendingKey = tuple[PeerId, int, int]


class Measuring:
    """See the module's docstring. ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        self.incoming, self.outgoing = LineMeter(), LineMeter()
        self._pending: OrderedDict[PendingKey, int] = OrderedDict()
        """Large payloads on their way: (peer, microbatch, attempt) -> bytes."""

    def sent(self, peer: PeerId, message: Message, size_bytes: int, now: float) -> None:
        """Note a message queued for ``peer`` at ``now``, with a payload of ``size_bytes``."""
        match message:
            case ChunkRequest():
                self.incoming.begin(peer, now)
            case Forward() if size_bytes >= MIN_PAYLOAD_BYTES:
                self._pending[peer, message.microbatch, message.attempt] = size_bytes
                self.outgoing.begin(peer, now)
                while len(self._pending) > MAX_PENDING:
                    self._pending.popitem(last=False)
            case Chunk():
                # the window's oldest chunk has come when the next one is asked for
                if self.outgoing.outstanding(peer) >= WINDOW:
                    self.outgoing.arrived(peer, size_bytes, now)
                self.outgoing.begin(peer, now)

    def received(self, peer: PeerId, message: Message, size_bytes: int, now: float) -> None:
        """Note a message of an admitted peer, before other parts process it.

        Args:
            peer: its sender.
            message: the message.
            size_bytes: of its payload.
            now: monotonic seconds.
        """
        match message:
            case Receipt():
                sent_bytes = self._pending.pop((peer, message.microbatch, message.attempt), 0)
                if sent_bytes:
                    self.outgoing.arrived(peer, sent_bytes, now)
            case Chunk():
                self.incoming.arrived(peer, size_bytes, now)

    def gone(self, peer: PeerId) -> None:
        """The link to a peer is gone."""
        self.incoming.gone(peer)
        self.outgoing.gone(peer)

    def lines(self, roster: Roster) -> dict[PeerId, tuple[float, float]]:
        """Return uplink and downlink (bytes/s) of every member that we are linked with: as it
        claims, or as we have measured where that is far less; its owner's limits included."""
        lines = {}
        for member in roster.linked():
            advert, peer = member.advert, member.peer
            up = _believed(advert.upload_bytes_per_s, self.incoming.bytes_per_s(peer))
            down = _believed(advert.download_bytes_per_s, self.outgoing.bytes_per_s(peer))
            limits = advert.upload_limit_bytes_per_s, advert.download_limit_bytes_per_s
            lines[peer] = (min(up, limits[0] or up), min(down, limits[1] or down))
        return lines


def _believed(claim: float, measured: float) -> float:
    stands = 0 < claim <= BAND * measured or not measured
    return claim if stands else measured
