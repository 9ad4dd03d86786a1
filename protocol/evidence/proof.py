"""Proofs: two signed bodies of one author that cannot both be true.

An honest volunteer signs one body under one number. Two bodies under one number therefore prove to
every peer, without trust in the peer that shows them, that their author lies to some. A proof is
valid in one swarm only, because every signature names its swarm. Pure functions; no state.
"""

from typing import Final

from protocol.audit import charges
from protocol.errors import RemoteProtocolError
from protocol.evidence.statement import STATEMENTS
from protocol.ids import PeerId, SwarmId, short
from protocol.verdicts import Certificate, Verdict
from protocol.wire.envelope import verify
from protocol.wire.fields import Envelope
from protocol.wire.parts import Proof, VotedOut
from protocol.wire.statement import parse_statement

Place = tuple[str, int, int, int, int]
"""Kind, stage, era, step and attempt: an author may sign one body for each."""

FALSE_PROOF_PENALTY: Final = 50
"""An honest peer verifies a proof before it relays it."""


def place_of(envelope: Envelope) -> Place:
    """Return the place of a statement, not yet verified.

    Raises:
        RemoteProtocolError: its body is malformed.
    """
    said = parse_statement(envelope.body)
    return envelope.kind, said.stage, said.era, said.step, said.attempt


def contradiction(one: Envelope, other: Envelope) -> Proof | None:
    """Return the proof that two signed bodies make; None if both may be true.

    The signatures are not checked here (``check``).

    Raises:
        RemoteProtocolError: a body of a kind that can contradict is malformed.
    """
    if not STATEMENTS.issuperset((one.kind, other.kind)) or one.signer != other.signer:
        return None
    if one.body == other.body or place_of(one) != place_of(other):
        return None
    first, second = sorted((one, other), key=lambda envelope: envelope.body)
    return Proof(first, second)


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
    """Say what a proof shows: ``Qx3f7A signed two different plans with one number``."""
    who = short(proof.first.signer)
    return f"{who} signed two different {proof.first.kind}s with one number"
