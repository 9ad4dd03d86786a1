"""Fetches a blob (a stage's state, a tokenizer) in verified chunks from several donors.

Donors whose offers agree in size and root serve the same bytes. The list of the chunks' digests
comes first; all of them are asked for it, for one that is silent may have repeated an honest offer.
Chunks are striped over them with a few requests in flight per donor, so a faster donor serves more.
A chunk counts when its digest matches; a donor that sends another one is dropped. Verified chunks
are kept: when a donor goes, only its chunks in flight are requested again. In the end others are
asked, too, for those that a donor was asked for long ago. Donors that offer other bytes wait for
their turn: it comes when all donors of the chosen blob are gone, or when that one takes long. A
blob gets as many turns as it has donors, so liars cost as much whether they agree or each offer
other bytes. The next time round its turns are twice as long, so that the whole comes in the end,
and a liar whose bytes drip does not keep others from giving theirs.
Chunks of an earlier attempt are reused if their digests match.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol import limits
from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pace import FORGET_S, LOOK_S
from protocol.transfer.blob import DIGEST_BYTES, chunk_count, split
from protocol.wire.messages import BlobOffer, BlobQuery, Chunk, ChunkRequest

WINDOW = 4
"""Chunks in flight per donor: 8 MiB cover the bandwidth-delay product of 640 Mb/s at 100 ms."""


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """Write the received chunk at ``index``: it is verified, and counts as written from now on.

    A driver that cannot write it gives up the whole fetch: other donors would not help.
    """

    index: int


@dataclass(slots=True)
class _Donor:
    offer: BlobOffer | None = None
    outstanding: dict[int | None, float] = field(default_factory=dict)
    """Chunk index to the time of its request; None: the list of digests."""
    heard: float = float("-inf")
    """When its last chunk came; a slow donor is not a silent one."""


FetchEffect = Send | Penalise | StoreChunk
_Bytes = tuple[int, bytes] | None
"""Size and root."""


class Fetch:
    """The download of one blob.

    Args:
        query: the blob wanted.
        donors: peers that may have it.
        window: chunks in flight per donor.
    """

    def __init__(self, query: BlobQuery, donors: list[PeerId], window: int = WINDOW) -> None:
        self._query, self._window = query, window
        self._donors = {donor: _Donor() for donor in donors}
        self._chosen: BlobOffer | None = None
        self._listed: list[bytes] | None = None
        """The digests of the chosen blob's chunks, once they are here."""
        self._missing: list[int] = []
        self._have = 0
        self._held: dict[int, bytes] = {}
        self._sources = dict[_Bytes, set[PeerId]]()
        self._turns = Counter[_Bytes]()
        self._turn_ends = math.inf
        self._asked_at: float | None = None

    @property
    def offer(self) -> BlobOffer | None:
        """The offer of the blob being fetched; None before the first offer."""
        return self._chosen

    @property
    def done(self) -> bool:
        """Whether every chunk has been received and verified."""
        return self._listed is not None and self._have == len(self._listed)

    @property
    def progress(self) -> tuple[int, int]:
        """Verified chunks, and chunks in all (0 before an offer)."""
        return self._have, chunk_count(self._chosen.size_bytes) if self._chosen else 0

    @property
    def sources(self) -> frozenset[PeerId]:
        """The donors that served a chunk of the blob being fetched."""
        return frozenset(self._sources.get(_bytes_of(self._chosen), ()))

    @property
    def hopeless(self) -> bool:
        """Whether no donor is left."""
        return not self._donors

    def resume(self, held: Mapping[int, bytes]) -> None:
        """Resume from chunks on disk, given as digest by index; call it before ``start``."""
        self._held.update(held)

    def concerns(self, message: BlobOffer | Chunk) -> bool:
        """Whether a message is about the blob that is wanted."""
        query = self._query
        named = message.kind, message.stage, message.version
        return named == (query.kind, query.stage, query.version)

    def start(self, now: float) -> list[FetchEffect]:
        """Ask every donor for its offer."""
        self._asked_at = now
        waiting = [peer for peer, donor in self._donors.items() if donor.offer is None]
        return [Send(peer, self._query) for peer in waiting]

    def offered(self, sender: PeerId, offer: BlobOffer, now: float) -> list[FetchEffect]:
        """Take a donor's offer; the first one determines the blob while it has a donor. One that
        offers no bytes does not have the blob, or not any more, and is dropped.

        Args:
            sender: the peer that sent it; ignored if it is no donor.
            offer: the donor's size and root; a late answer to another query is ignored.
            now: monotonic seconds.
        """
        donor = self._donors.get(sender)
        if self._asked_at is None or donor is None or not self.concerns(offer):
            return []
        if not offer.size_bytes:
            return self.lost(sender, now)
        if donor.offer is not None:
            return []
        if offer.size_bytes > limits.MAX_BLOB_BYTES:
            del self._donors[sender]
            return [Penalise(sender, "offer-inconsistent", 20)]
        donor.offer = offer
        self._choose_again(now)
        return self._ask(now)

    def chunk(
        self, sender: PeerId, chunk: Chunk, payload: bytes, digest: bytes, now: float
    ) -> list[FetchEffect]:
        """Take a chunk, or the list of their digests.

        Args:
            sender: the donor.
            chunk: which chunk of which blob it is.
            payload: its bytes.
            digest: their BLAKE2b-256, computed by the caller.
            now: monotonic seconds.
        """
        donor = self._donors.get(sender)
        if donor is None or self._chosen is None or not self.concerns(chunk):
            return []
        if chunk.index not in donor.outstanding:
            return []
        if digest != self._expected(chunk.index) or not self._is_whole(chunk.index, payload):
            self._lose(sender, now)
            return [Penalise(sender, "chunk-with-wrong-digest", 50), *self._ask(now)]
        for other in self._donors.values():
            other.outstanding.pop(chunk.index, None)
        donor.heard = now
        if chunk.index is None:
            self._take_list(split(payload))
            return self._ask(now)
        self._held[chunk.index] = digest
        self._sources.setdefault(_bytes_of(self._chosen), set()).add(sender)
        self._have += 1
        return [StoreChunk(chunk.index), *self._ask(now)]

    def lost(self, peer: PeerId, now: float) -> list[FetchEffect]:
        """Drop a lost donor; its chunks in flight are requested elsewhere."""
        self._lose(peer, now)
        return self._ask(now)

    def tick(self, now: float) -> list[FetchEffect]:
        """Repeat queries, since a donor does not answer while it still writes its snapshot. Drop
        donors that are silent for longer than their chunks in flight take on a slow line: 17 s each
        at 1 Mbit/s."""
        for peer, donor in list(self._donors.items()):
            oldest = min(donor.outstanding.values(), default=now)
            if now - max(oldest, donor.heard) >= self._window * FORGET_S:
                self._lose(peer, now)
        if now >= self._turn_ends:
            self._choose_again(now)
        effects = self._ask(now)
        if self._asked_at is not None and now >= self._asked_at + LOOK_S:
            effects += self.start(now)
        return effects

    def _ask(self, now: float) -> list[FetchEffect]:
        chosen = self._chosen
        if chosen is None:
            return []
        wanted = _bytes_of(chosen)
        ready = [(p, d) for p, d in self._donors.items() if _bytes_of(d.offer) == wanted]
        if self._listed is None:
            return [self._request(p, None, now) for p, d in ready if None not in d.outstanding]
        effects: list[FetchEffect] = []
        while self._missing and (peer := self._least_busy(ready, self._missing[-1])):
            effects.append(self._request(peer, self._missing.pop(), now))
        if not self._missing:
            for index in self._late(now):
                if peer := self._least_busy(ready, index):
                    effects.append(self._request(peer, index, now))
        return effects

    def _request(self, peer: PeerId, index: int | None, now: float) -> Send:
        assert self._chosen is not None
        self._donors[peer].outstanding[index] = now
        chosen = self._chosen
        return Send(peer, ChunkRequest(chosen.kind, chosen.stage, chosen.version, index))

    def _least_busy(self, ready: list[tuple[PeerId, _Donor]], index: int) -> PeerId | None:
        """Return who is asked for a chunk; None: all that were not have enough in flight."""
        free = [
            (len(donor.outstanding), peer)
            for peer, donor in ready
            if len(donor.outstanding) < self._window and index not in donor.outstanding
        ]
        return min(free)[1] if free else None

    def _late(self, now: float) -> list[int]:
        """Return the chunks that were asked for long ago and of nobody since: a liar that drips
        must not decide how long the last ones take."""
        asked = dict[int, float]()
        for donor in self._donors.values():
            for index, at in donor.outstanding.items():
                if index is not None:
                    asked[index] = max(at, asked.get(index, at))
        return sorted(index for index, at in asked.items() if now >= at + FORGET_S)

    def _lose(self, peer: PeerId, now: float) -> None:
        donor = self._donors.pop(peer, None)
        if donor is None:
            return
        elsewhere = {index for other in self._donors.values() for index in other.outstanding}
        lost = [i for i in donor.outstanding if i is not None and i not in elsewhere]
        self._missing = sorted((*self._missing, *lost), reverse=True)
        self._choose_again(now)

    def _choose_again(self, now: float) -> None:
        """Switch to another blob if nobody offers the chosen one (any more) or its turn is over: to
        the one that with this turn has had the fewest for each of its donors."""
        offers = [d.offer for d in self._donors.values() if d.offer is not None]
        count = Counter(map(_bytes_of, offers))
        goes_on = _bytes_of(self._chosen) in count
        if self.done or not offers or (goes_on and (now < self._turn_ends or len(count) == 1)):
            return

        def order(offer: BlobOffer) -> tuple[float, int]:
            donors, turns = count[_bytes_of(offer)], self._turns[_bytes_of(offer)]
            return (turns + 1) / donors, -donors

        before, self._chosen = _bytes_of(self._chosen), min(offers, key=order)
        chosen = _bytes_of(self._chosen)
        self._turn_ends = now + FORGET_S * 2 ** (self._turns[chosen] // count[chosen])
        self._turns[chosen] += 1
        if chosen == before:
            return
        self._listed, self._missing, self._have = None, [], 0
        for donor in self._donors.values():
            donor.outstanding.clear()

    def _take_list(self, digests: list[bytes]) -> None:
        """The received chunks whose digests are in the list are kept."""
        missing = [i for i, digest in enumerate(digests) if self._held.get(i) != digest]
        self._listed, self._have = digests, len(digests) - len(missing)
        self._missing = list(reversed(missing))

    def _expected(self, index: int | None) -> bytes | None:
        """Return the digest that a chunk must have, or the list of digests."""
        if index is None:
            return self._chosen.root if self._chosen is not None else None
        return self._listed[index] if self._listed is not None else None

    def _is_whole(self, index: int | None, payload: bytes) -> bool:
        """Whether a list has a digest for each chunk."""
        if index is not None or self._chosen is None:
            return True
        return len(payload) == DIGEST_BYTES * chunk_count(self._chosen.size_bytes)


def _bytes_of(offer: BlobOffer | None) -> _Bytes:
    """Return what names the offered bytes."""
    return None if offer is None else (offer.size_bytes, offer.root)
