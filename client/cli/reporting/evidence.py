"""The evidence against expelled members, as this volunteer keeps it: every piece checked."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from client.store.certificates import Certificates, load_certificates
from client.store.paths import Folders
from protocol.audit import charges
from protocol.errors import RemoteProtocolError
from protocol.evidence import proof as contradictions
from protocol.ids import SwarmId


class CheckedProof(Struct, frozen=True, kw_only=True):
    """The evidence against one member, and the result of its check."""

    kind: Literal["contradiction", "charges"]
    """A contradiction convicts by itself. Charges are the words of members of its stage, which
    were a majority to those that saw the stage then."""
    valid: bool
    problem: str = ""
    """The reason why it proves nothing."""
    peer: str = ""
    """The expelled member; empty if it proves nothing."""
    fault: str = ""
    """What the member did, in one sentence; empty if it proves nothing."""


def kept_evidence(folders: Folders, swarm: SwarmId) -> Certificates:
    """Return the evidence that this home keeps, unverified.

    Raises:
        DamagedFile: the file is too long or malformed.
        OSError: it cannot be read.
    """
    return load_certificates(folders.proofs(swarm)) or Certificates(1, swarm, (), ())


def checked(shown: Certificates) -> list[CheckedProof]:
    """Check every piece of evidence: its signatures, its swarm, and what it shows."""
    swarm, found = SwarmId(shown.swarm), list[CheckedProof]()
    for proof in shown.proofs:
        try:
            peer, fault = contradictions.check(proof, swarm), contradictions.words_of(proof)
            one = CheckedProof(kind="contradiction", valid=True, peer=peer, fault=fault)
        except RemoteProtocolError as error:
            one = CheckedProof(kind="contradiction", valid=False, problem=str(error))
        found.append(one)
    for out in shown.voted_out:
        try:
            verdict = charges.check(out, swarm)
            peer, fault = verdict.culprit, verdict.words
            one = CheckedProof(kind="charges", valid=True, peer=peer, fault=fault)
        except RemoteProtocolError as error:
            one = CheckedProof(kind="charges", valid=False, problem=str(error))
        found.append(one)
    return found
