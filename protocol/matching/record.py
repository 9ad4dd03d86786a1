"""Match records: verifiable proof that a volunteer and a stage agreed.

A record consists of two signed messages: the volunteer's proposal (or renewal), and the steward's
HOLD that answers it and makes the place final. Neither proves anything alone; two contradicting
HOLDs of one steward prove that it lies. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, Stage, parse_peer_id
from protocol.matching import bodies
from protocol.wire.envelope import verify
from protocol.wire.fields import Envelope


class MatchRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The two signed messages."""

    proposal: Envelope
    hold: Envelope


@dataclass(frozen=True, slots=True)
class Match:
    """The content of a valid record."""

    volunteer: PeerId
    steward: PeerId
    stage: Stage
    epoch: int
    rate: int
    """Micro-microbatches per second that the volunteer offered."""
    score: int
    proposed_ms: int
    held_ms: int


def read_record(record: MatchRecord, swarm: str) -> Match:
    """Verify both signatures and that the messages belong together; return their content.

    Raises:
        RemoteProtocolError: a signature is bad, or the two do not make a match.
    """
    verify(record.proposal, swarm)
    verify(record.hold, swarm)
    proposal = bodies.decode_body(record.proposal.kind, record.proposal.body)
    hold = bodies.decode_body(record.hold.kind, record.hold.body)
    if not isinstance(proposal, bodies.Propose) or not isinstance(hold, bodies.Hold):
        raise RemoteProtocolError("match-record-unrelated", "not a proposal and a hold")
    asked = (proposal.stage, proposal.mandate, proposal.version, proposal.steward)
    given = (hold.stage, hold.mandate, hold.version, record.hold.signer)
    if asked != given or hold.volunteer != record.proposal.signer:
        raise RemoteProtocolError("match-record-unrelated", "the hold answers something else")
    if not hold.locked:
        raise RemoteProtocolError("match-record-tentative", "the place was not final")
    return Match(
        volunteer=parse_peer_id(record.proposal.signer),
        steward=parse_peer_id(record.hold.signer),
        stage=bodies.stage_of(hold),
        epoch=hold.epoch,
        rate=proposal.rate,
        score=hold.score,
        proposed_ms=proposal.issued_ms,
        held_ms=hold.issued_ms,
    )
