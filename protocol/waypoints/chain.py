"""The chain of waypoints: from the manifest to a version that members certify.

A *waypoint* is one version of the whole run: the state's hash and the seats of every stage. A
waypoint counts after another one if for every stage more than half of the *witnesses* have signed
its part. The witnesses of a stage are the seats of the earlier waypoint in that stage and the
stages beside it; those of the first waypoint are the manifest's founder. So whoever knows the
manifest can check a chain alone. Pure functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final

from msgspec import Meta

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId
from protocol.limits import MAX_CERTIFIED_STAGES
from protocol.waypoints.part import FALSE_PART_PENALTY, PART, Part, parse_part, seat_limit
from protocol.wire.canonical import Format
from protocol.wire.envelope import verify
from protocol.wire.fields import ERA_BITS, HIGHEST_NUMBER, Envelope
from protocol.wire.parts import CertifiedPart, WaypointLink

MAX_LINKS: Final = 16
"""Of a chain: each stands for a time in which half of some stage's witnesses went."""
Links = Annotated[tuple[WaypointLink, ...], Meta(max_length=MAX_LINKS)]
_chains: Final = Format[tuple[WaypointLink, ...]](Links, "chain")
encode_chain, parse_chain = _chains.encode, _chains.parse
"""To the payload of a ``WaypointChain``, and back."""


@dataclass(frozen=True, slots=True)
class Waypoint:
    """A certified version of the run; hashes and seats by stage."""

    era: int
    version: int
    hashes: tuple[bytes, ...]
    seats: tuple[tuple[PeerId, ...], ...]

    @property
    def order(self) -> tuple[int, int]:
        """Number of roll-backs before, and version: a later waypoint has a higher one."""
        return order_of(self.era, self.version)

    @property
    def peers(self) -> frozenset[PeerId]:
        """All that it names."""
        return frozenset(peer for seats in self.seats for peer in seats)

    def witnesses(self, stage: int) -> frozenset[PeerId]:
        """Return the members whose signatures count for a stage's part of the next waypoint."""
        near = self.seats[max(0, stage - 1) : stage + 2]
        return frozenset(peer for seats in near for peer in seats)


def order_of(era: int, version: int) -> tuple[int, int]:
    """Return the sort key of versions: number of roll-backs before, and version."""
    return era >> ERA_BITS, version


def beginning(founder: PeerId, stages: int) -> Waypoint:
    """Return the start of every chain of a run: version 0, where the founder is the witness."""
    return Waypoint(0, 0, (), ((founder,),) * stages)


def is_certified(before: Waypoint, stage: int, signers: frozenset[PeerId]) -> bool:
    """Whether more than half of the witnesses of a stage are among the signers of its part."""
    witnesses = before.witnesses(stage)
    return 2 * len(signers & witnesses) > len(witnesses)


def waypoint_of(parts: Sequence[Part]) -> Waypoint:
    """Return the waypoint that the parts of all stages make."""
    hashes = tuple(part.hash for part in parts)
    seats = tuple(tuple(map(PeerId, part.seats)) for part in parts)
    return Waypoint(parts[0].era, parts[0].version, hashes, seats)


def check_link(
    before: Waypoint, link: WaypointLink, swarm: SwarmId, stages: int, steps: int
) -> Waypoint:
    """Verify a link that follows a waypoint, or the beginning, in a run of so many stages and
    steps; return its waypoint.

    Raises:
        RemoteProtocolError: ``waypoint-uncertified``: too few witnesses, or signatures of others;
            ``waypoint-absurd``: parts of different versions, missing, reordered or beyond the run;
            or a part is malformed or a signature bad.
    """
    parts = [parse_part(one.body) for one in link.parts]
    _check_parts(parts, stages, steps)
    found = waypoint_of(parts)
    if found.order <= before.order:
        raise _absurd("it does not come after the one before")
    for stage, one in enumerate(link.parts):
        _check_signatures(before, stage, one, swarm)
    return found


def _check_parts(parts: Sequence[Part], stages: int, steps: int) -> None:
    if [part.stage for part in parts] != list(range(stages)) or stages > MAX_CERTIFIED_STAGES:
        raise _absurd("stages are missing or reordered")
    if any((one.era, one.version) != (two.era, two.version) for one, two in pairwise(parts)):
        raise _absurd("its parts are of different versions")
    first = parts[0]
    if not 0 < first.version <= steps or first.era >> ERA_BITS > HIGHEST_NUMBER:
        raise _absurd("there is no such version")
    if any(len(part.seats) > seat_limit(stages) for part in parts):
        raise _absurd("it names too many seats")


def _check_signatures(before: Waypoint, stage: int, one: CertifiedPart, swarm: SwarmId) -> None:
    signers = [PeerId(signer) for signer, _ in one.signatures]
    known = before.witnesses(stage)
    if len(set(signers)) != len(signers) or not known.issuperset(signers):
        raise _uncertified(f"stage {stage} is signed by others, or twice by one")
    if not is_certified(before, stage, frozenset(signers)):
        raise _uncertified(f"too few of the {len(known)} witnesses of stage {stage} have signed")
    for signer, signature in one.signatures:
        verify(Envelope(signer, PART, one.body, signature), swarm)


def _absurd(words: str) -> RemoteProtocolError:
    return RemoteProtocolError("waypoint-absurd", words, FALSE_PART_PENALTY)


def _uncertified(words: str) -> RemoteProtocolError:
    return RemoteProtocolError("waypoint-uncertified", words, FALSE_PART_PENALTY)
