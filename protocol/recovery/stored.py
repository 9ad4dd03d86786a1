"""The stored record: which lineage a volunteer follows, and which checkpoints lie on its disk.

It is the body of the record "stored". A *lineage* is a history of the run, from its
beginning or from a roll-back on: its era, the version from which it started, that version's hash in
every stage, and who elects whoever closes the first step of each stage. Whoever decides a lineage
names them, so two that begin apart begin two lineages. An era is a hash of all that: nobody can say
of an era that it begins otherwise. Pure values and their checks.
"""

import hashlib
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.wire.canonical import Canonical
from protocol.wire.fields import ERA_BITS, Era, PeerText, StageIndex, StepIndex

STORED: Final = "stored"
"""Record kind."""
MAX_COPIES: Final = 24
"""Checkpoints one volunteer names: of its own stages and of those it keeps copies for."""
MAX_STORED_BYTES: Final = 12 * 1024
"""A hash per stage, ``MAX_COPIES`` copies of at most 50 bytes, and the first electors."""
HASH_BYTES: Final = 32
NONCE_BYTES: Final = 16

StateDigest = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]


class Lineage(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """The start of the run's present history; without electors it is that of nobody: of a volunteer
    that has followed none yet."""

    era: Era = 0
    version: StepIndex = 0
    hashes: Annotated[tuple[StateDigest, ...], Meta(max_length=limits.MAX_STAGES)] = ()
    """State hash by stage; none for version 0, which every member makes from the seed."""
    electors: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_ELECTORS)] = ()
    """Of the first step of every stage, in rising order: the members that whoever decided the
    lineage had around it, itself included."""
    nonce: Annotated[bytes, Meta(max_length=NONCE_BYTES)] = b""
    """Of the decision, so that who decides the same again begins another lineage."""

    @property
    def number(self) -> int:
        """Number of roll-backs before this lineage."""
        return self.era >> ERA_BITS


def begun(
    number: int,
    version: int,
    hashes: tuple[bytes, ...],
    electors: tuple[PeerText, ...],
    nonce: bytes,
) -> Lineage:
    """Return the lineage that begins so after ``number`` roll-backs."""
    said = msgspec.msgpack.encode((number, version, hashes, electors, nonce))
    low = int.from_bytes(hashlib.blake2b(said, digest_size=ERA_BITS // 8).digest(), "big")
    era = (number << ERA_BITS) | low | 1  # never 0, which is that of nobody
    return Lineage(era, version, hashes, electors, nonce)


def belongs(version: int, of: Lineage, lineage: Lineage) -> bool:
    """Whether a copy of ``version`` made in ``of`` belongs to ``lineage``: versions older than both
    are shared."""
    return of.era == lineage.era or version <= min(of.version, lineage.version)


class Copy(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """A checkpoint on the author's disk, verified."""

    stage: StageIndex
    version: StepIndex
    hash: StateDigest


class Stored(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body: the author's lineage and its copies in rising order."""

    lineage: Lineage = Lineage()
    copies: Annotated[tuple[Copy, ...], Meta(max_length=MAX_COPIES)] = ()


STORED_BODIES: Final = Canonical(Stored, "stored")


def check_stored(stored: Stored, stages: int) -> None:
    """Check a stored record of a run with so many stages.

    Raises:
        RemoteProtocolError: not in order, about stages that do not exist, or with an era that is
            not its lineage's.
    """
    copies, lineage = list(stored.copies), stored.lineage
    if sorted(set(copies)) != copies or any(copy.stage >= stages for copy in copies):
        raise RemoteProtocolError("stored-absurd", "copies out of order", penalty=20)
    if len(lineage.hashes) != (stages if lineage.version else 0):
        raise RemoteProtocolError("stored-absurd", "a lineage without its hashes", penalty=20)
    electors = list(lineage.electors)
    if sorted(set(electors)) != electors or bool(electors) != bool(lineage.era):
        raise RemoteProtocolError("stored-absurd", "a lineage without its electors", penalty=20)
    if lineage.era and lineage != begun(lineage.number, *msgspec.structs.astuple(lineage)[1:]):
        raise RemoteProtocolError("stored-forged", "the era is not this lineage's", penalty=20)
