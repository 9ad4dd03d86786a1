"""Parts of waypoints: what the replicas of one stage sign of a version that they have made.

A part names the hash of the stage's version and the *seats*: the members of the plan that made it.
Every replica that has closed that step makes the same part from it. Replicas of the neighbouring
stages sign it too. Signed parts spread as the record "waypoint". Pure values and their checks.
"""

from collections.abc import Collection
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, rank
from protocol.limits import MAX_CERTIFIED_STAGES, MAX_PART_BYTES, MAX_SEATS_OF_PART
from protocol.wire.canonical import Canonical
from protocol.wire.fields import Envelope, Era, Hash32, PeerText, StageIndex, StepIndex

PART: Final = "waypoint part"
"""What is signed."""
WAYPOINT: Final = "waypoint"
"""Record kind."""
MAX_WAYPOINT_BYTES: Final = 14 * 1024
"""The parts of 64 stages by one author: more than it signs."""
LEAST_STEPS: Final = 20
"""Between two waypoints, whatever the checkpoint interval is: signatures cost processor time."""
FALSE_PART_PENALTY: Final = 50


class Part(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The version of one stage."""

    stage: StageIndex
    era: Era
    version: StepIndex
    hash: Hash32
    seats: Annotated[tuple[PeerText, ...], Meta(min_length=1, max_length=MAX_SEATS_OF_PART)]
    """Members of the plan that made the version, in rising order; of many the first by rank."""

    @property
    def place(self) -> tuple[int, int, int]:
        """Stage, era and version."""
        return self.stage, self.era, self.version


class SignedPart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part, encoded, with its author's signature; the author signs the record, too."""

    body: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]

    def by(self, signer: PeerId) -> Envelope:
        """Return it as an envelope."""
        return Envelope(signer, PART, self.body, self.signature)


class SaidParts(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of a record: one author's newest part of each stage that it has signed."""

    parts: Annotated[tuple[SignedPart, ...], Meta(max_length=MAX_CERTIFIED_STAGES)]


_parts = Canonical(Part, "part")
encode_part: Final = _parts.encode
SAID_PARTS: Final = Canonical(SaidParts, "waypoint")


def spacing(checkpoint_every: int) -> int:
    """Return the steps between two waypoints: whole checkpoint intervals."""
    return checkpoint_every * -(-LEAST_STEPS // checkpoint_every)


def seat_limit(stages: int) -> int:
    """Return the most seats that a part names in a run of so many stages."""
    return max(1, min(MAX_SEATS_OF_PART, MAX_CERTIFIED_STAGES // stages))


def part_of(
    stage: int, era: int, version: int, digest: bytes, roll: Collection[PeerId], stages: int
) -> Part:
    """Return the part that every replica makes of a step that it has closed: the version, its hash,
    and of the plan's members the seats that a part names in a run of so many stages."""
    first = sorted(roll, key=lambda peer: rank(WAYPOINT, stage, peer))[: seat_limit(stages)]
    return Part(stage, era, version, digest, tuple(sorted(first)))


def parse_part(body: bytes) -> Part:
    """Parse a part.

    Raises:
        RemoteProtocolError: malformed, not canonical, or seats out of order.
    """
    part = _parts.parse(body)
    if list(part.seats) != sorted(set(part.seats)):
        raise RemoteProtocolError("part-absurd", "seats out of order", FALSE_PART_PENALTY)
    return part


def check_said(said: SaidParts, stages: int) -> None:
    """Check a record in a run of so many stages; the signatures of its parts are not checked here.

    Raises:
        RemoteProtocolError: a malformed part, stages that do not exist, or two parts of one stage.
    """
    about = [parse_part(one.body).stage for one in said.parts]
    if about != sorted(set(about)) or any(stage >= stages for stage in about):
        raise RemoteProtocolError("waypoint-absurd", "parts out of order", FALSE_PART_PENALTY)
