"""The records that this volunteer keeps, each in a file of its own (``Persisted``).

Those that a machine of the protocol restores itself are defined there. What others have signed is
kept unverified: the reader checks the signatures.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol.ids import PeerId
from protocol.names import MAX_NICKNAME_BYTES
from protocol.verdicts import MAX_CERTIFICATES
from protocol.waypoints.chain import Links
from protocol.wire.parts import Proof, VotedOut

LINEAGE: Final = "lineage.bin"
EVIDENCE: Final = "evidence.bin"
"""Names of files beside the checkpoints of a swarm."""

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Name = Annotated[str, Meta(max_length=MAX_NICKNAME_BYTES)]


# --- contributions ----------------------------------------------------------------------------


class KeptContributions(Struct, frozen=True):
    """Who contributed to a swarm, as this volunteer counted it."""

    versions: dict[int, int] = {}
    """By stage: up to which version is counted."""
    counts: dict[PeerId, Count] = {}
    """Microbatches by member."""
    names: dict[PeerId, Name] = {}


# --- what others have signed ------------------------------------------------------------------


class KeptEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """The evidence against the expelled members of a swarm; the oldest first."""

    proofs: Annotated[tuple[Proof, ...], Meta(max_length=MAX_CERTIFICATES)] = ()
    """Contradictions of one member."""
    voted_out: Annotated[tuple[VotedOut, ...], Meta(max_length=MAX_CERTIFICATES)] = ()
    """Members that their stages have voted out, with the charges."""


class KeptChain(Struct, frozen=True, forbid_unknown_fields=True):
    """The chain of a swarm's waypoints, the oldest link first."""

    links: Links = ()
