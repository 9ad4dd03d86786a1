"""Admission to private swarms: prove the invite's secret without showing it.

The proof is keyed BLAKE2b over the swarm and both peer ids in order. It needs no nonce: the link
underneath already proves both identities (Noise), and a proof names the one pair and the one
direction that it serves, so whoever overhears it can do nothing with it.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, SwarmId

SECRET_BYTES: Final = 32
PROOF_BYTES: Final = 32
_PERSON = b"volunteer/1/adm"


def admission_proof(secret: bytes, swarm: SwarmId, prover: PeerId, verifier: PeerId) -> bytes:
    """Return the 32 bytes that prove a swarm's ``secret`` from ``prover`` to ``verifier``.

    Args:
        secret: of the private swarm, 32 bytes.
        swarm: its id.
        prover: the peer that proves that it knows the secret.
        verifier: the peer that checks the proof.

    Raises:
        LocalProtocolError: the secret has another length.
    """
    if len(secret) != SECRET_BYTES:
        raise LocalProtocolError(f"an admission secret has {SECRET_BYTES} bytes")
    parts = "\x1f".join((swarm, prover, verifier)).encode()
    return hashlib.blake2b(parts, key=secret, digest_size=PROOF_BYTES, person=_PERSON).digest()


def admission_holds(
    secret: bytes, swarm: SwarmId, prover: PeerId, verifier: PeerId, proof: bytes
) -> bool:
    """Check a proof in constant time.

    Args:
        secret: of the private swarm.
        swarm: its id.
        prover: the peer that sent the proof.
        verifier: ourselves.
        proof: the bytes received.
    """
    return hmac.compare_digest(admission_proof(secret, swarm, prover, verifier), proof)
