"""The kinds of records: permitted authors, number, size and time to live of each."""

from functools import partial
from typing import Final

from protocol import limits
from protocol.matching import bodies
from protocol.matching.timing import LEASE_S
from protocol.membership.advert import ADVERT, ADVERTS, check_advert
from protocol.membership.losses import HELD_OUT, LOSSES, PROGRESS
from protocol.membership.measured import MAX_MEASURED_BYTES, MEASURED, MEASUREMENTS
from protocol.membership.records import Kind
from protocol.recovery.stored import MAX_STORED_BYTES, STORED, STORED_BODIES, check_stored
from protocol.waypoints.part import MAX_WAYPOINT_BYTES, SAID_PARTS, WAYPOINT, check_said

MAX_ADVERTS: Final = 8192
MAX_STORED: Final = 1024
"""Records of stored checkpoints; in a larger swarm some copies are not advertised."""
MAX_WAYPOINTS: Final = 512
MAX_ADVERT_BYTES: Final = 4096
MAX_LOSS_BYTES: Final = 64


def record_kinds(stages: int) -> dict[str, Kind]:
    """Return the rules of all kinds; ``stages``: their number in the manifest."""
    most = MAX_ADVERTS
    loss = Kind(most, MAX_LOSS_BYTES, LOSSES)
    return {
        ADVERT: Kind(most, MAX_ADVERT_BYTES, ADVERTS, partial(check_advert, stages=stages)),
        PROGRESS: loss,
        HELD_OUT: loss,
        MEASURED: Kind(most, MAX_MEASURED_BYTES, MEASUREMENTS),
        STORED: Kind(
            *(MAX_STORED, MAX_STORED_BYTES, STORED_BODIES),
            lambda said, _author: check_stored(said, stages),
        ),
        WAYPOINT: Kind(
            *(MAX_WAYPOINTS, MAX_WAYPOINT_BYTES, SAID_PARTS),
            lambda said, _author: check_said(said, stages),
        ),
        # of any author: one may become a member or a candidate a moment later here than elsewhere;
        # the matching decides which of them to believe
        bodies.KIND: Kind(
            *(stages * bodies.MAX_AUTHORS, bodies.MAX_BODY_BYTES, bodies.POSTINGS),
            lambda said, _author: bodies.check_posting(said, stages),
            key=lambda said, author: f"{said.stage}/{author}",
        ),
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
