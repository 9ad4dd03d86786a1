"""Fetching a blob (a stage's state, the training text) in verified chunks from several donors.

Donors whose offers agree in size and digests serve the same bytes, so chunks are striped over them,
a few outstanding per donor: the faster one simply serves more. A chunk counts when its digest fits;
a donor that sends another one is dropped. What is here stays here: when a donor goes, only its
outstanding chunks are asked for again. Donors that offer other bytes wait: when everybody who
offered the chosen ones is gone, the fetch goes over to what most of the others offer. What an
earlier attempt has left counts as far as its digests fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol import limits
from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.wire.messages import BlobOffer, BlobQuery, Chunk, ChunkRequest, NoBlob

WINDOW = 4
"""Chunks outstanding per donor: 8 MiB cover the bandwidth-delay product of 640 Mb/s at 100 ms."""
QUERY_RETRY_S = 0.25
"""Who has nothing yet, as its snapshot is still being written, says nothing: it is asked again."""
CHUNK_TIMEOUT_S = 30.0
"""A donor of whom nothing came for so long, though chunks were asked for, is given up."""


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """Write the chunk in hand at its place: it is verified, and counts as written from now on.

    Who cannot write it gives the whole fetch up: other donors have nothing better.
    """

    index: int


@dataclass(slots=True)
class _Donor:
    offer: BlobOffer | None = None
    outstanding: dict[int, float] = field(default_factory=dict)
    """Chunk index to when it was asked for."""
    heard: float = float("-inf")
    """When its last chunk came: a slow line is not a silent one."""


FetchEffect = Send | Penalise | StoreChunk


class Fetch:
    """One blob on its way here.

    Args:
        query: what is wanted; its version may be None for the newest a donor has.
        donors: who may have it.
        window: chunks outstanding per donor.
    """

    def __init__(self, query: BlobQuery, donors: list[PeerId], window: int = WINDOW) -> None:
        self._query, self._window = query, window
        self._donors = {donor: _Donor() for donor in donors}
        self._chosen: BlobOffer | None = None
        self._missing: list[int] = []
        self._have = 0
        self._held: dict[int, bytes] = {}
        self._sources = set[PeerId]()
        self._asked_at: float | None = None

    @property
    def offer(self) -> BlobOffer | None:
        """What is being fetched, once a donor has offered it."""
        return self._chosen

    @property
    def done(self) -> bool:
        """Whether every chunk is here."""
        return self._chosen is not None and self._have == len(self._chosen.digests)

    @property
    def progress(self) -> tuple[int, int]:
        """Chunks here, chunks in all (0 before an offer)."""
        return self._have, len(self._chosen.digests) if self._chosen else 0

    @property
    def sources(self) -> frozenset[PeerId]:
        """Whoever served a chunk; of the blob that is fetched now."""
        return frozenset(self._sources)

    @property
    def hopeless(self) -> bool:
        """Whether no donor is left."""
        return not self._donors

    def resume(self, held: Mapping[int, bytes]) -> None:
        """Go on with what is on the disk: digests of chunks at their places; before ``start``."""
        self._held.update(held)

    def answers(self, offer: BlobOffer) -> bool:
        """Whether an offer is of what was asked for."""
        query = self._query
        same = (offer.kind, offer.stage) == (query.kind, query.stage)
        return same and query.version in (None, offer.version)

    def start(self, now: float) -> list[FetchEffect]:
        """Ask every donor for its offer."""
        self._asked_at = now
        waiting = [peer for peer, donor in self._donors.items() if donor.offer is None]
        return [Send(peer, self._query) for peer in waiting]

    def offered(self, sender: PeerId, offer: BlobOffer, now: float) -> list[FetchEffect]:
        """Take a donor's offer; the first one chooses the blob, as long as a donor of it lives."""
        donor = self._donors.get(sender)
        if self._asked_at is None or donor is None:
            return []
        if not self.answers(offer) or donor.offer is not None:
            return []
        if len(offer.digests) != -(-offer.size_bytes // limits.CHUNK_BYTES) or not offer.digests:
            del self._donors[sender]
            return [Penalise(sender, "offer-inconsistent", 20)]
        donor.offer = offer
        if self._chosen is None:
            self._choose(offer)
        return self._ask(now)

    def refused(self, sender: PeerId, answer: NoBlob, now: float) -> list[FetchEffect]:
        """The donor does not have it (any more); a late answer to another question says nothing."""
        donor = self._donors.get(sender)
        if donor is None or not self._is_refusal(donor, answer):
            return []
        self._lose(sender)
        return self._ask(now)

    def chunk(self, sender: PeerId, chunk: Chunk, digest: bytes, now: float) -> list[FetchEffect]:
        """Take a chunk; ``digest`` is the BLAKE2b-256 of its payload."""
        donor = self._donors.get(sender)
        if donor is None or self._chosen is None or not self._is_ours(chunk):
            return []
        if chunk.index not in donor.outstanding:
            return []
        if digest != self._chosen.digests[chunk.index]:
            self._lose(sender)
            return [Penalise(sender, "chunk-with-wrong-digest", 50), *self._ask(now)]
        del donor.outstanding[chunk.index]
        donor.heard = now
        self._held[chunk.index] = digest
        self._sources.add(sender)
        self._have += 1
        return [StoreChunk(chunk.index), *self._ask(now)]

    def lost(self, peer: PeerId, now: float) -> list[FetchEffect]:
        """A peer is gone."""
        self._lose(peer)
        return self._ask(now)

    def tick(self, now: float) -> list[FetchEffect]:
        """Ask again where nothing came; take silent donors' chunks elsewhere."""
        for peer, donor in list(self._donors.items()):
            oldest = min(donor.outstanding.values(), default=now)
            if now - max(oldest, donor.heard) >= CHUNK_TIMEOUT_S:
                self._lose(peer)
        effects = self._ask(now)
        if self._asked_at is not None and now >= self._asked_at + QUERY_RETRY_S:
            effects += self.start(now)
        return effects

    def served_by(self) -> Counter[PeerId]:
        """Return how many chunks each donor has outstanding (for the progress display)."""
        return Counter({peer: len(donor.outstanding) for peer, donor in self._donors.items()})

    def _ask(self, now: float) -> list[FetchEffect]:
        chosen = self._chosen
        if chosen is None:
            return []
        effects: list[FetchEffect] = []
        ready = [(p, d) for p, d in self._donors.items() if _same(d.offer, chosen)]
        while self._missing:
            free = [
                (len(d.outstanding), p, d) for p, d in ready if len(d.outstanding) < self._window
            ]
            if not free:
                break
            _, peer, donor = min(free, key=lambda entry: entry[:2])
            index = self._missing.pop()
            donor.outstanding[index] = now
            request = ChunkRequest(chosen.kind, chosen.stage, chosen.version, index)
            effects.append(Send(peer, request))
        return effects

    def _lose(self, peer: PeerId) -> None:
        donor = self._donors.pop(peer, None)
        if donor is None:
            return
        self._missing = sorted({*self._missing, *donor.outstanding}, reverse=True)
        offers = [d.offer for d in self._donors.values() if d.offer is not None]
        if not self.done and offers and not any(_same(offer, self._chosen) for offer in offers):
            self._choose(max(offers, key=lambda o: sum(_same(o, other) for other in offers)))

    def _choose(self, offer: BlobOffer) -> None:
        """Fetch this blob: of what is here, chunks that it has as well stay."""
        missing = [i for i, digest in enumerate(offer.digests) if self._held.get(i) != digest]
        self._sources.clear()
        self._chosen, self._have = offer, len(offer.digests) - len(missing)
        self._missing = missing[::-1]

    def _is_refusal(self, donor: _Donor, answer: NoBlob) -> bool:
        query = self._query
        if (answer.kind, answer.stage) != (query.kind, query.stage):
            return False
        offered = donor.offer.version if donor.offer is not None else query.version
        return answer.version in (query.version, offered)

    def _is_ours(self, chunk: Chunk) -> bool:
        chosen = self._chosen
        return chosen is not None and (chunk.kind, chunk.stage, chunk.version) == (
            chosen.kind,
            chosen.stage,
            chosen.version,
        )


def _same(offer: BlobOffer | None, chosen: BlobOffer | None) -> bool:
    """Whether two offers are of the same bytes."""
    if offer is None or chosen is None:
        return False
    return (offer.version, offer.size_bytes, offer.digests) == (
        chosen.version,
        chosen.size_bytes,
        chosen.digests,
    )
