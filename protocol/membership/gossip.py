"""Push-pull anti-entropy: spreads records to all members over the existing links.

A record that is new to us is pushed at once: to all links if there are at most eight, else to three
drawn by hash. Every few seconds one neighbour, in rotation, gets a digest of our store. It sends
the records we lack, and its own digest if it lacks some. An idle swarm sends periodic digests only.

Peers that have done no work hear of progress by their digests alone: it is told with every step,
and a crowd of invented members would have most of that.

A store falls into parts by a hash of the slot, and a digest lists one of them. Of a large store one
part after the other is compared with every neighbour.

State: the links, the rotation and its part, and two byte budgets per peer. One limits our answers,
because a digest of a hundred bytes can ask for the whole store. The other limits what we accept,
because every new record is forwarded. Signatures are verified by the store, not here.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, takewhile
from typing import Final

from protocol import limits
from protocol.effects import Effect, Penalise, Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, rank
from protocol.membership.losses import PROGRESS
from protocol.membership.records import Held, Offer, RecordStore
from protocol.pace import HEARD_S, TICK_S
from protocol.token_bucket import Rate, TokenBuckets
from protocol.wire.fields import Envelope
from protocol.wire.messages import RecordDigest, Records, encode_message
from protocol.wire.parts import DigestEntry

DIGEST_EVERY_S: Final = HEARD_S + TICK_S
"""What an idle line may spend on finding out that it has lost nothing."""
PUSH_TO_ALL_UP_TO: Final = 8
PUSH_FANOUT: Final = 3
LINK: Final = Rate(128 * 1024, 1024 * 1024)
"""Bytes of records that a peer may bring, and as many that it may ask for."""
MAX_BUDGETS: Final = 4096
DIGEST_COST_BYTES: Final = 1024
"""Charged for every digest that we read, so that empty ones are not free either."""

PART_ENTRIES: Final = 384
"""Records of a part on average; chance makes none longer than a digest may be."""

MESSAGE_BUDGET_BYTES: Final = limits.MAX_HEADER_BYTES - 2048
ENVELOPE_OVERHEAD_BYTES: Final = 192
"""Signer 52, kind 32, signature 64 and msgpack's own bytes, rounded up."""


def envelope_size(envelope: Envelope) -> int:
    """Return an upper bound of an envelope's bytes on the wire, close to the true size."""
    return len(envelope.body) + ENVELOPE_OVERHEAD_BYTES


def split_records(envelopes: list[Envelope]) -> Iterator[Records]:
    """Split records into messages below the header limit."""
    part, size_bytes = list[Envelope](), 0
    for envelope in envelopes:
        full = len(part) == limits.MAX_RECORDS_PER_MESSAGE
        if part and (full or size_bytes + envelope_size(envelope) > MESSAGE_BUDGET_BYTES):
            yield Records(part)
            part, size_bytes = [], 0
        part.append(envelope)
        size_bytes += envelope_size(envelope)
    if part:
        yield Records(part)


class Gossip:
    """Spreads the records of one store over the links of one peer. ``now`` is monotonic seconds.

    Args:
        is_new: whether a peer has done no work, though work has proven others.
    """

    def __init__(self, own: PeerId, store: RecordStore, is_new: Callable[[PeerId], bool]) -> None:
        self._own, self._store, self._is_new = own, store, is_new
        self._links: dict[PeerId, None] = {}
        self._budgets = TokenBuckets[tuple[str, PeerId]](MAX_BUDGETS)
        self._rotation: list[PeerId] = []
        self._part = 0
        """What this rotation compares, of as many parts as there are now."""
        self._next_digest: float | None = None

    def link_up(self, peer: PeerId, now: float) -> list[Effect]:
        """Start gossiping over a new link; the peer with the lower id sends its digest first."""
        self._links[peer] = None
        if self._next_digest is None:
            self._next_digest = now + DIGEST_EVERY_S
        return self.open_digest(peer) if self._own < peer else []

    def link_down(self, peer: PeerId) -> None:
        """Forget a link."""
        self._links.pop(peer, None)
        if not self._links:
            self._next_digest = None

    def spread(self, fresh: Iterable[Held], source: PeerId | None = None) -> list[Effect]:
        """Push records that are new to us, never back to their source or their author."""
        batches: dict[PeerId, list[Envelope]] = {}
        for held in fresh:
            for peer in self._targets(held, source):
                batches.setdefault(peer, []).append(held.envelope)
        return [
            Send(peer, part)
            for peer, envelopes in batches.items()
            for part in split_records(envelopes)
        ]

    def receive_records(
        self, sender: PeerId, message: Records, now: float, wall: float
    ) -> tuple[list[Offer], list[Effect]]:
        """Offer records, not yet verified, to the store and push the new ones on; return what has
        become of them, and effects. ``wall`` is Unix seconds.

        Records over the link's byte budget are ignored: a later digest brings them again.
        """
        offers, blame = list[Offer](), list[Effect]()
        for envelope in message.records:
            if not self._takes("intake", sender, envelope_size(envelope), now):
                break
            try:
                offers.append(self._store.offer(envelope, sender, wall))
            except RemoteProtocolError as error:
                blame = [Penalise(sender, error.reason, error.penalty)]
                break  # after a forged record the rest of the message is not worth verifying
        fresh = [offer.held for offer in offers if offer.held is not None]
        return offers, [*blame, *self.spread(fresh, sender)]

    def receive_digest(self, sender: PeerId, message: RecordDigest, now: float) -> list[Effect]:
        """Send the records of a part that the sender lacks, and ask for ours."""
        part, parts = message.part, message.parts
        if not self._takes("answers", sender, DIGEST_COST_BYTES, now):
            return []
        theirs = {(entry.kind, entry.key): entry for entry in message.entries}
        lacking = []
        for held in self._store.part(part, parts):
            known = theirs.get(held.slot)
            # who has said something since it began anew has to speak over what it said before
            if held.order > _order(known) if known is not None else held.signer != sender:
                lacking.append(held.envelope)
        answer: list[Records | RecordDigest] = [*split_records(lacking)]
        behind = any(self._store.order(slot) < _order(entry) for slot, entry in theirs.items())
        if message.want_reply and behind:
            answer.append(self._digest(part, parts, want_reply=False))
        takes = partial(self._takes, "answers", sender, now=now)
        sends = takewhile(lambda part: takes(len(encode_message(part))), answer)
        return [Send(sender, part) for part in sends]

    def open_digest(self, peer: PeerId) -> list[Effect]:
        """Send a peer the digest of our whole store and ask for its own."""
        parts = self._parts
        return [Send(peer, self._digest(part, parts, want_reply=True)) for part in range(parts)]

    def tick(self, now: float) -> list[Effect]:
        """Send the periodic digest when it is due."""
        if self._next_digest is None or now < self._next_digest:
            return []
        self._next_digest = now + DIGEST_EVERY_S
        peer, parts = self._next_in_rotation(), self._parts
        if peer is None:
            return []
        return [Send(peer, self._digest(self._part % parts, parts, want_reply=True))]

    def next_deadline(self) -> float | None:
        """Return when the next digest is due, None without links."""
        return self._next_digest

    def _targets(self, held: Held, source: PeerId | None) -> list[PeerId]:
        others = [peer for peer in self._links if peer not in (source, held.signer)]
        if held.envelope.kind == PROGRESS:
            others = [peer for peer in others if not self._is_new(peer)]
        if len(self._links) <= PUSH_TO_ALL_UP_TO:
            return others
        # drawn again for every record, so that no peer depends on periodic digests alone; by one
        # hash, because a crowd of invented members brings many records and holds many links
        draw = int.from_bytes(rank(self._own, *held.slot, held.record.seq))
        chosen = []
        for _ in range(min(PUSH_FANOUT, len(others))):
            draw, place = divmod(draw, len(others))
            chosen.append(others.pop(place))
        return chosen

    def _takes(self, budget: str, peer: PeerId, size_bytes: int, now: float) -> bool:
        return peer in self._links and self._budgets.take({(budget, peer): LINK}, now, size_bytes)

    def _next_in_rotation(self) -> PeerId | None:
        self._rotation = [peer for peer in self._rotation if peer in self._links]
        if not self._rotation:
            self._rotation, self._part = sorted(self._links), self._part + 1
        return self._rotation.pop(0) if self._rotation else None

    @property
    def _parts(self) -> int:
        return 1 + len(self._store) // PART_ENTRIES

    def _digest(self, part: int, parts: int, *, want_reply: bool) -> RecordDigest:
        entries = map(_entry, self._store.part(part, parts))
        most = limits.MAX_DIGEST_ENTRIES
        return RecordDigest([*islice(entries, most)], want_reply, part, parts)


def _entry(held: Held) -> DigestEntry:
    kind, key = held.slot
    return DigestEntry(kind=kind, key=key, seq=held.record.seq, mark=held.mark)


def _order(entry: DigestEntry) -> tuple[int, bytes]:
    return entry.seq, entry.mark
