"""What a volunteer serves: files while it may, a reason while its owner says no."""

from __future__ import annotations

from pathlib import Path

from protocol_examples import peer

from client.train.blobs import Shelf, offer_of_file
from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.wire.messages import BlobOffer, BlobQuery, Chunk, ChunkRequest, Message, NoBlob

ASKER = peer(1)


class Hub:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Message, bytes]] = []

    def now(self) -> float:
        return 0.0

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self.sent.append((message, payload))

    def perform(self, effect: Effect) -> None:
        raise AssertionError(effect)


def test_while_the_shelf_is_closed_it_says_why_and_serves_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"weights")
    hub = Hub()
    shelf = Shelf(hub)
    offer = offer_of_file("state", 0, 5, path)
    shelf.put(offer, path, temporary=False)
    query, request = BlobQuery("state", 0, None), ChunkRequest("state", 0, 5, 0)

    shelf.closed_because = lambda: "the quota"
    shelf.query(ASKER, query)
    shelf.request(ASKER, request)
    assert [message for message, _ in hub.sent] == [
        NoBlob("state", 0, None, "the quota"),
        NoBlob("state", 0, 5, "the quota"),
    ]
    assert shelf.served_bytes == 0

    hub.sent.clear()
    shelf.closed_because = lambda: ""
    shelf.query(ASKER, query)
    shelf.request(ASKER, request)
    (offered, _), (chunk, payload) = hub.sent
    assert isinstance(offered, BlobOffer)
    assert (offered, chunk, payload) == (offer, Chunk("state", 0, 5, 0), b"weights")
