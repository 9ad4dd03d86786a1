"""The kinds of records: permitted authors, number, size and time to live of each."""

from collections.abc import Callable
from typing import Final

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.matching import bodies
from protocol.matching.timing import LEASE_S
from protocol.membership.advert import ADVERT, parse_advert
from protocol.membership.losses import HELD_OUT, PROGRESS, parse_loss
from protocol.membership.measured import MAX_MEASURED_BYTES, MEASURED, parse_measurements
from protocol.membership.record import Record
from protocol.membership.records import Check, Kind
from protocol.recovery.stored import MAX_STORED_BYTES, STORED, parse_stored
from protocol.waypoints.part import MAX_WAYPOINT_BYTES, WAYPOINT, parse_said

MAX_ADVERTS: Final = 8192
MAX_STORED: Final = 1024
"""Records of stored checkpoints; in a larger swarm some copies are not advertised."""
MAX_WAYPOINTS: Final = 512
MAX_ADVERT_BYTES: Final = 4096
MAX_LOSS_BYTES: Final = 64
MEASURED_GAP_MS: Final = 20_000
"""A record that follows its predecessor sooner is refused. The value is below the usual gap because
clocks and links vary."""


def record_kinds(
    stages: int,
    serves_last_stage: Callable[[PeerId], bool],
) -> dict[str, Kind]:
    """Return the rules of all kinds.

    Args:
        stages: number of stages in the manifest.
        serves_last_stage: only these peers may publish losses.
    """

    def own(parse: Callable[..., object], *terms: int) -> Check:
        """Accept what an author says in its own name, if ``parse`` does."""

        def check(signer: PeerId, record: Record) -> str | None:
            parse(record.body, record.key, signer, *terms)
            return None

        return check

    def loss(signer: PeerId, record: Record) -> str | None:
        parse_loss(record.body, record.key, signer)
        return None if serves_last_stage(signer) else "the signer does not serve the last stage"

    def posting(signer: PeerId, record: Record) -> str | None:
        """Accept any author, because one may become a member or a candidate a moment later here
        than elsewhere. The matching decides which of them to believe."""
        subject, _, author = record.key.partition("/")
        if subject not in known:
            raise RemoteProtocolError("posting-malformed", "the key is no stage", penalty=20)
        if author != signer:
            raise RemoteProtocolError("posting-forged", "speaks for another peer", penalty=50)
        return None

    known = frozenset(map(str, range(stages)))
    replicas, most = limits.MAX_REPLICAS_IN_ROUND, MAX_ADVERTS
    return {
        ADVERT: Kind(most, MAX_ADVERT_BYTES, own(parse_advert, stages), binding=True),
        PROGRESS: Kind(replicas, MAX_LOSS_BYTES, loss),
        HELD_OUT: Kind(replicas, MAX_LOSS_BYTES, loss),
        MEASURED: Kind(
            most, MAX_MEASURED_BYTES, own(parse_measurements, stages), min_gap_ms=MEASURED_GAP_MS
        ),
        STORED: Kind(MAX_STORED, MAX_STORED_BYTES, own(parse_stored, stages), binding=True),
        WAYPOINT: Kind(MAX_WAYPOINTS, MAX_WAYPOINT_BYTES, own(parse_said, stages)),
        bodies.KIND: Kind(stages * bodies.MAX_AUTHORS, bodies.MAX_BODY_BYTES, posting),
    }


def ttl_s(kind: str, members: int) -> int:
    """Return the time to live (seconds) of our records of a kind in a swarm of ``members``.

    Adverts live longer in larger swarms (renewed after a third of their life), so the whole
    swarm renews about 1.5 adverts per second until the bound of 600 s, whatever its size.
    """
    longest = int(limits.MAX_ADVERT_TTL_S)
    if kind == ADVERT:
        return min(longest, max(int(limits.MIN_ADVERT_TTL_S), 2 * members))
    return int(LEASE_S) if kind == bodies.KIND else longest
