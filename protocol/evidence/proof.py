"""Proofs: two signed bodies of one author that cannot both be true.

An honest volunteer signs one body under one number. Two bodies under one number therefore prove to
every peer, without trust in the peer that shows them, that their author lies to some. So do a
commitment to a contribution and a segment of it with another digest. A proof is valid in one swarm
only, because every signature names its swarm. Pure functions; no state.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from protocol.audit import charges, commitment
from protocol.audit.commitment import Piece
from protocol.errors import RemoteProtocolError
from protocol.evidence.statement import STATEMENTS
from protocol.ids import PeerId, SwarmId, short
from protocol.verdicts import Certificate, Verdict
from protocol.wire.envelope import verify
from protocol.wire.fields import Envelope
from protocol.wire.messages import Commitment
from protocol.wire.parts import Proof, VotedOut
from protocol.wire.statement import Statement, parse_statement

Place = tuple[str | int, ...]
"""The key under which an author may sign one body."""

FALSE_PROOF_PENALTY: Final = 50
"""An honest peer verifies a proof before it relays it."""


def _number(said: Statement | Commitment | Piece) -> Place:
    return said.stage, said.era, said.step, said.attempt


def _place_of_segment(body: bytes) -> Place:
    said = commitment.PIECE.parse(body)
    return *_number(said), said.segment


PLACES: Final[Mapping[str, Callable[[bytes], Place]]] = MappingProxyType(
    {
        **dict.fromkeys(STATEMENTS, lambda body: _number(parse_statement(body))),
        commitment.KIND: lambda body: _number(commitment.SIGNED.parse(body)),
        commitment.SEGMENT: _place_of_segment,
    }
)
"""The kinds of signed bodies of which two can contradict each other, and how a body names its
place. Only kinds whose numbers an honest author never uses twice stand here."""
CONTRIBUTED: Final = frozenset((commitment.KIND, commitment.SEGMENT))
"""The two kinds of signed bodies about one contribution."""


def contradiction(one: Envelope, other: Envelope) -> Proof | None:
    """Return the proof that two signed bodies make; None if both may be true.

    The signatures are not checked here (``check``).

    Raises:
        RemoteProtocolError: a body of a kind that can contradict is malformed.
    """
    if one.signer != other.signer or not (_differ(one, other) or _is_of_another(one, other)):
        return None
    first, second = sorted((one, other), key=lambda envelope: envelope.body)
    return Proof(first, second)


def _differ(one: Envelope, other: Envelope) -> bool:
    """Whether two bodies of a kind have one number."""
    place = PLACES.get(one.kind)
    if place is None or one.kind != other.kind or one.body == other.body:
        return False
    return place(one.body) == place(other.body)


def _is_of_another(one: Envelope, other: Envelope) -> bool:
    """Whether one of two bodies is a commitment, and the other one a segment of its attempt that is
    no part of it."""
    bodies = {one.kind: one.body, other.kind: other.body}
    if bodies.keys() != CONTRIBUTED:
        return False
    said = commitment.SIGNED.parse(bodies[commitment.KIND])
    sent = commitment.PIECE.parse(bodies[commitment.SEGMENT])
    there = said.segments[sent.segment : sent.segment + 1]
    return _number(said) == _number(sent) and there != (sent.digest,)


def check(certificate: Certificate, swarm: SwarmId) -> Verdict:
    """Verify a certificate; return the verdict.

    Raises:
        RemoteProtocolError: ``proof-of-nothing``: the bodies do not contradict each other or stand
            in the wrong order; or a signature is bad, or made for another swarm; or the charges
            are none (``audit/charges.py``).
    """
    if isinstance(certificate, VotedOut):
        return charges.check(certificate, swarm)
    proof = certificate
    if contradiction(proof.first, proof.second) != proof:
        raise RemoteProtocolError("proof-of-nothing", proof.first.kind, FALSE_PROOF_PENALTY)
    verify(proof.first, swarm)
    verify(proof.second, swarm)
    return Verdict(PeerId(proof.first.signer), _words_of(proof), proof)


def _words_of(proof: Proof) -> str:
    """Say what a proof shows: ``Qx3f7A signed two different adverts with one number``."""
    who = short(proof.first.signer)
    if {proof.first.kind, proof.second.kind} == CONTRIBUTED:
        return f"{who} signed what it would contribute, and then contributed something else"
    return f"{who} signed two different {proof.first.kind}s with one number"
