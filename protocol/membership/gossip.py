"""Push-pull anti-entropy: spreads records to all members over the existing links.

A record that is new to us is pushed at once: to all links if there are at most eight, else to three
drawn by hash. Every few seconds one neighbour, in rotation, gets a digest of our store. It sends
the records we lack, and its own digest if it lacks some. An idle swarm sends periodic digests only.

A digest is a sorted list that covers the whole closed range between its first and its last entry.
A large one can therefore be split: the parts overlap by one entry, and the outermost entries are
sentinels below and above every slot.

State: the links, the rotation, and two byte budgets per link. One limits our answers, because a
digest of a hundred bytes can ask for the whole store. The other limits what we accept, because
every new record is forwarded. Signatures are verified by the store, not here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final, TypeVar

from protocol import limits
from protocol.effects import Effect, Penalise, Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, rank
from protocol.membership.records import Held, RecordStore, Slot
from protocol.membership.view import Contradicted
from protocol.token_bucket import TokenBucket
from protocol.wire.fields import Envelope
from protocol.wire.messages import RecordDigest, Records
from protocol.wire.parts import DigestEntry

Item = TypeVar("Item")

DIGEST_EVERY_S: Final = 5.0
PUSH_TO_ALL_UP_TO: Final = 8
PUSH_FANOUT: Final = 3
LINK_BURST_BYTES: Final = 1024 * 1024
LINK_BYTES_PER_S: Final = 128 * 1024
DIGEST_COST_BYTES: Final = 1024
"""Charged for every digest that we read, so that empty ones are not free either."""

BELOW: Final = DigestEntry(kind="!", key="", seq=0)
ABOVE: Final = DigestEntry(kind="~", key="", seq=0)
"""Sentinels: kinds are lower-case words, which sort between them."""


MESSAGE_BUDGET_BYTES: Final = limits.MAX_HEADER_BYTES - 2048
ENVELOPE_OVERHEAD_BYTES: Final = 192
"""Signer 52, kind 32, signature 64 and msgpack's own bytes, rounded up."""
ENTRY_OVERHEAD_BYTES: Final = 26


def message_size(message: Records | RecordDigest) -> int:
    """Return an upper bound of a message's bytes on the wire, close to the true size."""
    if isinstance(message, Records):
        return sum(map(envelope_size, message.records))
    return sum(map(entry_size, message.entries))


def envelope_size(envelope: Envelope) -> int:
    """Return an upper bound of an envelope's bytes on the wire, close to the true size."""
    return len(envelope.body) + ENVELOPE_OVERHEAD_BYTES


def entry_size(entry: DigestEntry) -> int:
    """Return an upper bound of a digest entry's bytes on the wire, close to the true size."""
    return len(entry.kind) + len(entry.key.encode()) + ENTRY_OVERHEAD_BYTES


def slot_of(entry: DigestEntry) -> Slot:
    """Return the slot (kind, key) of a digest entry."""
    return entry.kind, entry.key


def split_records(envelopes: list[Envelope]) -> Iterator[Records]:
    """Split records into messages below the header limit."""
    parts = _parts(envelopes, envelope_size, limits.MAX_RECORDS_PER_MESSAGE, overlap=0)
    return map(Records, parts)


def split_digest(entries: list[DigestEntry], *, want_reply: bool) -> Iterator[RecordDigest]:
    """Split a sorted digest of at least two entries into messages that overlap by one entry."""
    parts = _parts(entries, entry_size, limits.MAX_DIGEST_ENTRIES, overlap=1)
    return (RecordDigest(part, want_reply) for part in parts)


def _parts(
    items: Sequence[Item], size_of: Callable[[Item], int], most: int, *, overlap: int
) -> Iterator[list[Item]]:
    """Cut items into parts of ``most`` at most that fit into a message; each begins with so many of
    the part before."""
    part, size_bytes = list[Item](), 0
    for item in items:
        if part and (len(part) == most or size_bytes + size_of(item) > MESSAGE_BUDGET_BYTES):
            yield part
            part = part[len(part) - overlap :]
            size_bytes = sum(map(size_of, part))
        part.append(item)
        size_bytes += size_of(item)
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class Received:
    """Result of a ``Records`` message: new records, records displaced by them, and effects."""

    fresh: list[Held]
    displaced: list[Held]
    effects: list[Effect | Contradicted]


@dataclass(frozen=True, slots=True)
class _Link:
    answers: TokenBucket
    intake: TokenBucket


class Gossip:
    """Spreads the records of one store over the links of one peer."""

    def __init__(self, own: PeerId, store: RecordStore) -> None:
        self._own = own
        self._store = store
        self._links: dict[PeerId, _Link] = {}
        self._rotation: list[PeerId] = []
        self._next_digest: float | None = None

    def link_up(self, peer: PeerId, now: float) -> list[Effect]:
        """Start gossiping over a new link; the peer with the lower id sends its digest first."""
        self._links[peer] = _Link(
            TokenBucket(LINK_BYTES_PER_S, LINK_BURST_BYTES, now),
            TokenBucket(LINK_BYTES_PER_S, LINK_BURST_BYTES, now),
        )
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
    ) -> Received:
        """Offer received records to the store and push the new ones on.

        Records over the link's byte budget are ignored: a later digest brings them again.

        Args:
            sender: the linked peer that sent them.
            message: the records, not yet verified.
            now: monotonic seconds, for the budget.
            wall: Unix seconds, for the records' times.
        """
        result = Received([], [], [])
        link = self._links.get(sender)
        for envelope in message.records:
            if link is None or not link.intake.take(envelope_size(envelope), now):
                break
            try:
                offer = self._store.offer(envelope, sender, wall)
            except RemoteProtocolError as error:
                result.effects.append(Penalise(sender, error.reason, error.penalty))
                break  # after a forged record the rest of the message is not worth verifying
            if offer.against is not None:
                result.effects.append(Contradicted(offer.against.envelope, envelope))
            if offer.held is not None:
                result.fresh.append(offer.held)
            if offer.displaced is not None:
                result.displaced.append(offer.displaced)
        result.effects.extend(self.spread(result.fresh, sender))
        return result

    def receive_digest(self, sender: PeerId, message: RecordDigest, now: float) -> list[Effect]:
        """Send the records that the sender lacks in its digest's range, and ask for ours.

        Args:
            sender: the linked peer that sent the digest.
            message: sorted entries; the first and last delimit the range covered.
            now: monotonic seconds, for the budget of answers.
        """
        link = self._links.get(sender)
        if link is None or not link.answers.take(DIGEST_COST_BYTES, now):
            return []
        slots = list(map(slot_of, message.entries))
        if len(slots) < 2 or any(a >= b for a, b in pairwise(slots)):
            return [Penalise(sender, "digest-not-sorted", 20)]
        theirs = {slot_of(entry): entry for entry in message.entries}
        lacking = self._lacking(theirs, slots[0], slots[-1], sender)
        answer: list[Records | RecordDigest] = [*split_records(lacking)]
        if message.want_reply and self._lacks_any(theirs):
            answer += self._digest(want_reply=False, first=slots[0], last=slots[-1])
        affordable = takewhile(lambda part: link.answers.take(message_size(part), now), answer)
        return [Send(sender, part) for part in affordable]

    def open_digest(self, peer: PeerId) -> list[Effect]:
        """Send a peer the digest of our whole store and ask for its own."""
        parts = self._digest(want_reply=True, first=slot_of(BELOW), last=slot_of(ABOVE))
        return [Send(peer, part) for part in parts]

    def tick(self, now: float) -> list[Effect]:
        """Send the periodic digest when it is due."""
        if self._next_digest is None or now < self._next_digest:
            return []
        # about 512 entries per 5 s at most: larger stores are compared less often
        parts = 1 + len(self._store) // limits.MAX_DIGEST_ENTRIES
        self._next_digest = now + DIGEST_EVERY_S * parts
        peer = self._next_in_rotation()
        return [] if peer is None else self.open_digest(peer)

    def next_deadline(self) -> float | None:
        """Return when the next digest is due, None without links."""
        return self._next_digest

    def _targets(self, held: Held, source: PeerId | None) -> list[PeerId]:
        others = [peer for peer in self._links if peer not in (source, held.signer)]
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

    def _next_in_rotation(self) -> PeerId | None:
        self._rotation = [peer for peer in self._rotation if peer in self._links]
        if not self._rotation:
            self._rotation = sorted(self._links)
        return self._rotation.pop(0) if self._rotation else None

    def _lacking(
        self, theirs: dict[Slot, DigestEntry], first: Slot, last: Slot, sender: PeerId
    ) -> list[Envelope]:
        """Return what the sender lacks, and what it has in another body with the same number."""
        held = (held for held in self._store if first <= held.slot <= last)
        newer = [h for h in held if h.signer != sender and _is_news(h, theirs.get(h.slot))]
        return [h.envelope for h in sorted(newer, key=lambda h: h.slot)]

    def _lacks_any(self, theirs: dict[Slot, DigestEntry]) -> bool:
        sentinels = (slot_of(BELOW), slot_of(ABOVE))
        return any(
            slot not in sentinels and self._store.seq(slot) < entry.seq
            for slot, entry in theirs.items()
        )

    def _digest(self, *, want_reply: bool, first: Slot, last: Slot) -> list[RecordDigest]:
        entries = [BELOW, *sorted(map(_entry, self._store), key=slot_of), ABOVE]
        slots = list(map(slot_of, entries))
        # include the entries just outside, so that the digest covers all of first..last
        low, high = bisect_right(slots, first) - 1, bisect_left(slots, last) + 1
        return list(split_digest(entries[max(0, low) : high], want_reply=want_reply))


def _entry(held: Held) -> DigestEntry:
    kind, key = held.slot
    return DigestEntry(kind=kind, key=key, seq=held.record.seq, mark=held.mark)


def _is_news(held: Held, theirs: DigestEntry | None) -> bool:
    """Whether a record is newer than what a digest names, or has another body."""
    if theirs is None or held.record.seq > theirs.seq:
        return True
    return held.record.seq == theirs.seq and held.mark != theirs.mark
