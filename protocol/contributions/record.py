"""The counted record: how many microbatches of committed steps each member of a stage contributed.

It is the body of the record ("counted", own peer id): one per author, about the stages that it
serves. The plan of every committed step says whose microbatches it counts, so all replicas that
closed the same steps count alike. ``board.py`` combines the records of several authors.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, parse_peer_id
from protocol.wire.canonical import Canonical
from protocol.wire.fields import PeerText, StageIndex, StepIndex

COUNTED: Final = "counted"
"""Record kind; the key is the author's peer id."""

MAX_COUNTED: Final = 96
"""Members that a record names, over all its stages: three full stages."""

MAX_COUNTED_BYTES: Final = 8 * 1024
"""Each has 64 bytes at most."""


class Counted(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member, and its microbatches in the committed steps of one stage."""

    peer: PeerText
    microbatches: Annotated[int, Meta(ge=1, lt=2**53)]


class StageCounts(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The contributions to one stage, as far as its author knows them."""

    stage: StageIndex
    version: StepIndex
    """Version up to which it has counted."""
    members: Annotated[tuple[Counted, ...], Meta(max_length=MAX_COUNTED)] = ()
    """In ascending order of peer id."""


class Counts(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body: stages in ascending order."""

    stages: Annotated[tuple[StageCounts, ...], Meta(max_length=limits.MAX_SEATS)] = ()


_bodies = Canonical(Counts, COUNTED)


def encode_counts(counts: Counts) -> bytes:
    """Return the canonical encoding; raises ``LocalProtocolError`` for a field out of range."""
    return _bodies.encode(counts)


def parse_counts(body: bytes, key: str, signer: PeerId, stages: int, per_step: int) -> Counts:
    """Parse counts and check them.

    Args:
        body: the record's body, canonical encoding.
        key: the record's key, which must be the signer.
        signer: verified author of the record.
        stages: number of stages in the manifest.
        per_step: microbatches per step: no stage has counted more up to a version.

    Raises:
        RemoteProtocolError: malformed, not canonical, in another's name, about one member or stage
            twice, about a stage that does not exist, or more than there was to count.
    """
    counts = _bodies.parse_own(body, key, signer)
    problem = _absurdity(counts, stages, per_step)
    if problem is not None:
        raise RemoteProtocolError("counted-absurd", problem, penalty=20)
    return counts


def _absurdity(counts: Counts, stages: int, per_step: int) -> str | None:
    held = [one.stage for one in counts.stages]
    if sorted(set(held)) != held or (held and held[-1] >= stages):
        return "stages repeat, are not in order or do not exist"
    if sum(len(one.members) for one in counts.stages) > MAX_COUNTED:
        return f"it names more than {MAX_COUNTED} members"
    for one in counts.stages:
        peers = [member.peer for member in one.members]
        if sorted(set(peers)) != peers:
            return "members repeat or are not in order"
        if sum(member.microbatches for member in one.members) > one.version * per_step:
            return "it counts more microbatches than there were"
        try:
            for peer in peers:
                parse_peer_id(peer)
        except ValueError as error:
            return str(error)
    return None
