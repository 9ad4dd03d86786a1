"""The record store: the newest verified record of every (kind, key), within stated bounds.

It holds only envelopes that it has checked itself, and it never sends. It remembers which peer
introduced each record, so that it stays fair when it is full: the introducer with the largest share
loses its latest introduction. A flood through one link therefore displaces only itself. Our own
records and those that ``protected`` names (of linked peers, of candidates) are never displaced.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final
from zlib import crc32

from msgspec import Meta, Struct

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId
from protocol.wire.canonical import Canonical
from protocol.wire.envelope import Signer, verify
from protocol.wire.fields import Count, Envelope, UnixSeconds

Slot = tuple[str, str]
"""(kind, key)."""

MARK_BYTES: Final = 8


class Record(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body of a record: one author's statement of a kind, which is valid until it
    expires; the highest seq of a (kind, key) wins."""

    seq: Count
    expires: UnixSeconds
    body: Annotated[bytes, Meta(max_length=limits.MAX_RECORD_BODY_BYTES)]


_bodies = Canonical(Record, "record")
parse_record: Final = _bodies.parse
"""From the body of an envelope, whose signature is checked elsewhere."""


def seal(signer: Signer, kind: str, record: Record, swarm: SwarmId) -> Envelope:
    """Return a record of a kind in an envelope that is valid in one swarm.

    Raises:
        LocalProtocolError: a field out of its range.
    """
    return signer.sign(kind, _bodies.encode(record), swarm)


@dataclass(frozen=True, slots=True)
class Kind:
    """Rules of one kind of record; memory is at most ``max_count`` x (body + 512 bytes)."""

    max_count: int
    max_body_bytes: int
    bodies: Canonical[Any]
    check: Callable[[Any, PeerId], None] = lambda _said, _author: None
    """Checks a parsed body by its author; raises ``RemoteProtocolError``. Whoever brings the record
    is blamed, so a check asks only what all members know: the manifest."""
    key: Callable[[Any, PeerId], str] = lambda _said, author: author
    """Returns the key of a parsed body by its author: nobody writes in another's name."""


@dataclass(frozen=True, slots=True)
class Held:
    """One stored record."""

    envelope: Envelope
    record: Record
    said: Any
    """The parsed body."""
    slot: Slot
    introducer: PeerId
    mark: bytes
    """8 bytes of the body's BLAKE2b: of two with one number the one with the higher mark counts."""
    place: int
    """A hash of the slot, by which stores are compared in parts."""

    @property
    def signer(self) -> PeerId:
        """The verified author."""
        return PeerId(self.envelope.signer)

    @property
    def order(self) -> tuple[int, bytes]:
        """Of two records of a slot the one with the higher order counts."""
        return self.record.seq, self.mark


@dataclass(frozen=True, slots=True)
class Offer:
    """Result of offering a record: ``held`` if it was new to us, else a stable short reason."""

    held: Held | None
    reason: str
    displaced: Held | None = None


class RecordStore:
    """Newest verified record per (kind, key).

    Args:
        swarm: the swarm that records must be signed for.
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
        self._shares = {kind: Counter[PeerId]() for kind in kinds}
        """By kind: how many each introducer has introduced."""
        self._next_expiry = math.inf

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

    def order(self, slot: Slot) -> tuple[int, bytes]:
        """Return the order of the record of a slot, one below all others if there is none."""
        held = self._held.get(slot)
        return (-1, b"") if held is None else held.order

    def next_seq(self, slot: Slot, wall: float) -> int:
        """Return the number of our next record: Unix milliseconds, or later if need be."""
        return max(self.order(slot)[0] + 1, int(wall * 1000))

    def offer(self, envelope: Envelope, introducer: PeerId, wall: float) -> Offer:
        """Check a record, cheapest test first, and store it if it is newer than ours.

        Args:
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
        said = kind.bodies.parse(record.body)
        slot = envelope.kind, kind.key(said, author)
        mark = mark_of(envelope.body)
        if (record.seq, mark) <= self.order(slot):
            return Offer(None, "known")
        if record.expires <= wall:
            return Offer(None, "expired")
        if record.expires > wall + limits.MAX_ADVERT_TTL_S + limits.MAX_CLOCK_SKEW_S:
            return Offer(None, "from-the-future")
        verify(envelope, self._swarm)
        kind.check(said, author)
        place = crc32("/".join(slot).encode())
        return self._store(Held(envelope, record, said, slot, introducer, mark, place), kind)

    def drop_author(self, author: PeerId) -> list[Held]:
        """Remove and return all records of an author that is out."""
        gone = [held for held in self._held.values() if held.signer == author]
        for held in gone:
            self._remove(held)
        return gone

    def expire(self, wall: float) -> list[Held]:
        """Remove and return the records that have expired at ``wall`` (Unix seconds)."""
        if wall < self._next_expiry:
            return []
        gone = [held for held in self._held.values() if held.record.expires <= wall]
        for held in gone:
            self._remove(held)
        self._next_expiry = min((h.record.expires for h in self._held.values()), default=math.inf)
        return gone

    def _store(self, held: Held, kind: Kind) -> Offer:
        before = self._held.get(held.slot)
        displaced: Held | None = None
        if before is not None:
            # an update leaves the record in its first introducer's share
            held = replace(held, introducer=before.introducer)
        else:
            shares = self._shares[held.envelope.kind]
            if shares.total() >= kind.max_count and (displaced := self._displace_for(held)) is None:
                return Offer(None, "store-full")
            shares[held.introducer] += 1
        self._held[held.slot] = held
        self._next_expiry = min(self._next_expiry, held.record.expires)
        return Offer(held, "new", displaced)

    def _displace_for(self, held: Held) -> Held | None:
        """Remove one record of the largest share; None if that is the new record's own share."""
        shares = self._shares[held.envelope.kind]
        vital = held.introducer == self._own or self._protected(held.slot)
        for introducer, share in shares.most_common():
            if not vital and share <= shares[held.introducer] + 1:
                return None
            theirs = (one for one in reversed(self._held.values()) if one.introducer == introducer)
            of_kind = (one for one in theirs if one.envelope.kind == held.envelope.kind)
            victim = next((one for one in of_kind if not self._protected(one.slot)), None)
            if victim is not None and introducer != self._own:
                self._remove(victim)
                return victim
        return None

    def _remove(self, held: Held) -> None:
        del self._held[held.slot]
        shares = self._shares[held.envelope.kind]
        shares[held.introducer] -= 1
        if not shares[held.introducer]:
            del shares[held.introducer]


def mark_of(body: bytes) -> bytes:
    """Return what tells a body from another one of the same number in a digest."""
    return hashlib.blake2b(body, digest_size=MARK_BYTES).digest()
