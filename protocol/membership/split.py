"""Sizes of membership messages, and cutting long ones into several below the header limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protocol import limits
from protocol.membership.records import Slot
from protocol.wire.fields import Envelope
from protocol.wire.messages import RecordDigest, Records
from protocol.wire.parts import DigestEntry

MESSAGE_BUDGET_BYTES: Final = limits.MAX_HEADER_BYTES - 2048
ENVELOPE_OVERHEAD_BYTES: Final = 192
"""Signer 52, kind 32, signature 64 and msgpack's own bytes, rounded up."""
ENTRY_OVERHEAD_BYTES: Final = 16


def message_size(message: Records | RecordDigest) -> int:
    """Return about how many bytes a message has on the wire, never fewer."""
    if isinstance(message, Records):
        return sum(map(envelope_size, message.records))
    return sum(map(entry_size, message.entries))


def envelope_size(envelope: Envelope) -> int:
    """Return about how many bytes an envelope has on the wire, never fewer."""
    return len(envelope.body) + ENVELOPE_OVERHEAD_BYTES


def entry_size(entry: DigestEntry) -> int:
    """Return about how many bytes a digest's entry has on the wire, never fewer."""
    return len(entry.kind) + len(entry.key.encode()) + ENTRY_OVERHEAD_BYTES


def slot_of(entry: DigestEntry) -> Slot:
    """Return which record an entry speaks of."""
    return entry.kind, entry.key


def split_records(envelopes: list[Envelope]) -> Iterator[Records]:
    """Cut records into messages."""
    part: list[Envelope] = []
    size_bytes = 0
    for envelope in envelopes:
        full = len(part) == limits.MAX_RECORDS_PER_MESSAGE
        if part and (full or size_bytes + envelope_size(envelope) > MESSAGE_BUDGET_BYTES):
            yield Records(records=part)
            part, size_bytes = [], 0
        part.append(envelope)
        size_bytes += envelope_size(envelope)
    if part:
        yield Records(records=part)


def split_digest(entries: list[DigestEntry], *, want_reply: bool) -> Iterator[RecordDigest]:
    """Cut a sorted digest of two entries or more into messages that overlap by one entry."""
    part: list[DigestEntry] = []
    size_bytes = 0
    for entry in entries:
        full = len(part) == limits.MAX_DIGEST_ENTRIES
        if full or size_bytes + entry_size(entry) > MESSAGE_BUDGET_BYTES:
            yield RecordDigest(entries=part, want_reply=want_reply)
            part, size_bytes = [part[-1]], entry_size(part[-1])
        part.append(entry)
        size_bytes += entry_size(entry)
    yield RecordDigest(entries=part, want_reply=want_reply)
