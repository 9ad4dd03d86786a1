"""The record store: the newest verified record of every (kind, key), within stated bounds.

It holds only envelopes that it has checked itself, and it never sends. It remembers which peer
introduced each record, so that it stays fair when it is full: the introducer with the largest share
loses its latest introduction. A flood through one link therefore displaces only itself. Our own
records and those that ``protected`` names (of linked peers, of candidates) are never displaced.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId
from protocol.membership.record import Record, key_of, parse_record, staleness
from protocol.membership.view import Contradicted
from protocol.wire.canonical import Canonical
from protocol.wire.envelope import verify
from protocol.wire.fields import Envelope

Slot = tuple[str, str]
"""(kind, key)."""

MARK_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """Rules of one kind of record; memory is at most ``max_count`` x (body + 512 bytes)."""

    max_count: int
    max_body_bytes: int
    bodies: Canonical[Any]
    check: Callable[[Any, PeerId], None] = lambda _said, _author: None
    """Checks a parsed body by its author; raises ``RemoteProtocolError``. Whoever brings the record
    is blamed, so a check asks only what all members know: the manifest."""
    subject: Callable[[Any], str] = lambda _said: ""
    """Returns what a parsed body is about."""
    binding: bool = False
    """An honest author never signs two of them with one number (``protocol/evidence``)."""


@dataclass(frozen=True, slots=True)
class Held:
    """One stored record."""

    envelope: Envelope
    record: Record
    said: Any
    """The parsed body."""
    introducer: PeerId
    mark: bytes = b""
    """Of a binding kind: 8 bytes of the body's BLAKE2b, by which digests tell two bodies apart."""
    place: int = 0
    """A hash of the slot, by which stores are compared in parts."""

    @property
    def slot(self) -> Slot:
        """(kind, key)."""
        return self.envelope.kind, key_of(self.record.subject, self.envelope.signer)

    @property
    def signer(self) -> PeerId:
        """The verified author."""
        return PeerId(self.envelope.signer)


@dataclass(frozen=True, slots=True)
class Offer:
    """Result of offering a record: ``held`` if it was new to us, else a stable short reason."""

    held: Held | None
    reason: str
    displaced: Held | None = None
    against: Contradicted | None = None
    """The record that we hold and this other one that its author has signed with that number."""


class RecordStore:
    """Newest verified record per (kind, key).

    Args:
        swarm: the swarm that records must be signed for.
        own: our own id.
        kinds: the rules of each kind of record.
        protected: whether a record must not be displaced.
        is_out: whether a peer is expelled: its records are refused.
    """

    def __init__(
        self,
        swarm: SwarmId,
        own: PeerId,
        kinds: Mapping[str, Kind],
        protected: Callable[[Slot], bool] = lambda _slot: False,
        is_out: Callable[[PeerId], bool] = lambda _author: False,
    ) -> None:
        self._swarm = swarm
        self._own = own
        self.kinds = kinds
        self._protected = protected
        self._is_out = is_out
        self._held: dict[Slot, Held] = {}
        # kind -> introducer -> keys in the order of introduction
        self._shares: dict[str, dict[PeerId, dict[str, None]]] = {kind: {} for kind in kinds}
        self._counts = dict.fromkeys(kinds, 0)
        self._next_expiry: int | None = None
        self.size_bytes = 0
        """Bytes of the stored bodies."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def part(self, part: int, parts: int) -> Iterator[Held]:
        """Return the records of one of so many parts, which are alike in all stores."""
        return (held for held in self if held.place % parts == part)

    def get(self, kind: str, key: str) -> Held | None:
        """Return the record of a slot."""
        return self._held.get((kind, key))

    def seq(self, slot: Slot) -> int:
        """Return the seq of the record of a slot, -1 if there is none."""
        held = self._held.get(slot)
        return -1 if held is None else held.record.seq

    def next_seq(self, slot: Slot, wall: float) -> int:
        """Return the number of our next record: Unix milliseconds, or later if need be."""
        return max(self.seq(slot) + 1, int(wall * 1000))

    def offer(self, envelope: Envelope, introducer: PeerId, wall: float) -> Offer:
        """Check a record, cheapest test first, and store it if it is newer than ours.

        Args:
            envelope: the signed record as it came.
            introducer: the peer it came from, which need not be its author.
            wall: Unix seconds.

        Raises:
            RemoteProtocolError: the record is one that an honest relay never sends.
        """
        kind, author = self.kinds.get(envelope.kind), PeerId(envelope.signer)
        if kind is None:
            return Offer(None, "unknown-kind")
        record = parse_record(envelope.body)
        if len(record.body) > kind.max_body_bytes:
            raise RemoteProtocolError("record-too-long", envelope.kind, penalty=20)
        if self._is_out(author):
            return Offer(None, "its author is out")
        key = key_of(record.subject, author)
        if record.seq <= self.seq((envelope.kind, key)):
            return self._known(envelope, record, kind)
        if (refusal := staleness(record, wall)) is not None:
            return Offer(None, refusal)
        verify(envelope, self._swarm)
        said = kind.bodies.parse(record.body)
        kind.check(said, author)
        if record.subject != kind.subject(said):
            raise RemoteProtocolError("record-subject", envelope.kind, penalty=20)
        mark = mark_of(envelope.body) if kind.binding else b""
        place = crc32(f"{envelope.kind}/{key}".encode())
        return self._store(Held(envelope, record, said, introducer, mark, place), kind)

    def _known(self, envelope: Envelope, record: Record, kind: Kind) -> Offer:
        """Look whether a record that is not newer contradicts the one that we hold."""
        held = self._held[envelope.kind, key_of(record.subject, envelope.signer)]
        alike = held.record.seq == record.seq
        if not kind.binding or not alike or held.envelope.body == envelope.body:
            return Offer(None, "known")
        verify(envelope, self._swarm)
        return Offer(None, "contradicts", against=Contradicted(held.envelope, envelope))

    def drop_author(self, author: PeerId) -> list[Held]:
        """Remove and return all records of an author that is out."""
        gone = [held for held in self._held.values() if held.signer == author]
        for held in gone:
            self._remove(held)
        return gone

    def expire(self, wall: float) -> list[Held]:
        """Remove and return the records that have expired at ``wall`` (Unix seconds)."""
        if self._next_expiry is None or wall < self._next_expiry:
            return []
        gone = [held for held in self._held.values() if held.record.expires <= wall]
        for held in gone:
            self._remove(held)
        self._next_expiry = min((h.record.expires for h in self._held.values()), default=None)
        return gone

    def _store(self, held: Held, kind: Kind) -> Offer:
        before = self._held.get(held.slot)
        displaced = None
        if before is not None:
            # an update leaves the record in its first introducer's share
            held = replace(held, introducer=before.introducer)
            self.size_bytes -= len(before.envelope.body)
        else:
            full, displaced = self._make_room(held, kind)
            if full:
                return Offer(None, "store-full")
            self._join_share(held)
        self._held[held.slot] = held
        self.size_bytes += len(held.envelope.body)
        expires = held.record.expires
        self._next_expiry = (
            expires if self._next_expiry is None else min(self._next_expiry, expires)
        )
        return Offer(held, "new", displaced)

    def _make_room(self, held: Held, kind: Kind) -> tuple[bool, Held | None]:
        """Return whether the store is full, and the record that was removed to make room."""
        if self._counts[held.envelope.kind] < kind.max_count:
            return False, None
        displaced = self._displace_for(held)
        return displaced is None, displaced

    def _displace_for(self, held: Held) -> Held | None:
        """Remove one record of the largest share; None if that is the new record's own share."""
        kind = held.envelope.kind
        shares = self._shares[kind]
        asking = len(shares.get(held.introducer, ())) + 1
        vital = held.introducer == self._own or self._protected(held.slot)
        for introducer in sorted(shares, key=lambda peer: len(shares[peer]), reverse=True):
            if not vital and len(shares[introducer]) <= asking:
                return None
            victim = self._latest_unprotected(kind, introducer)
            if victim is not None:
                self._remove(victim)
                return victim
        return None

    def _latest_unprotected(self, kind: str, introducer: PeerId) -> Held | None:
        if introducer == self._own:
            return None
        for key in reversed(self._shares[kind][introducer]):
            if not self._protected((kind, key)):
                return self._held[kind, key]
        return None

    def _join_share(self, held: Held) -> None:
        kind, key = held.slot
        self._shares[kind].setdefault(held.introducer, {})[key] = None
        self._counts[kind] += 1

    def _remove(self, held: Held) -> None:
        kind, key = held.slot
        del self._held[held.slot]
        self.size_bytes -= len(held.envelope.body)
        self._counts[kind] -= 1
        share = self._shares[kind][held.introducer]
        del share[key]
        if not share:
            del self._shares[kind][held.introducer]


def mark_of(body: bytes) -> bytes:
    """Return what tells a body from another one of the same number in a digest."""
    return hashlib.blake2b(body, digest_size=MARK_BYTES).digest()
