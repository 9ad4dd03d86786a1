"""Postings: the public state of a stage, a record that its steward signs.

Integers only (rates in micro-microbatches per second, times in milliseconds), so NaN, infinities
and 1e30 cannot be expressed. Every field is bounded and the encoding is canonical, so equal bodies
have equal bytes.
"""

from typing import Annotated, Final

from msgspec import Meta

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.matching import preferences
from protocol.matching.timing import LEASE_S
from protocol.wire.canonical import Canonical
from protocol.wire.letters import Body, Epoch

KIND: Final = "posting"
"""A record of a steward about its stage, whose number is the subject. Two stewards of a stage that
do not know of each other both post."""
MAX_BODY_BYTES: Final = 1024
MAX_AUTHORS: Final = 8
"""Of a stage, on average in a store: three are candidates, and as many others were when the beacon
began."""

Level = Annotated[int, Meta(ge=0, le=preferences.MAX_RATE * 100_000)]
Score = Annotated[int, Meta(ge=0, lt=preferences.MAX_SCORE)]
Replicas = Annotated[int, Meta(ge=0, le=100_000)]
Phase = Annotated[int, Meta(ge=0, le=2)]


class Posting(Body, frozen=True):
    """The public state of one stage, complete for volunteers and other stewards."""

    epoch: Epoch
    phase: Phase
    level: Level
    """L_s: summed rate of all its home members."""
    replicas: Replicas
    """Its home members."""
    locked_level: Level
    """Summed rate of incumbents only: the L_s that preferences of this epoch are computed from."""
    locked_replicas: Replicas
    quota: Level
    fair: Level
    """Lambda as the steward sees it."""
    r: Annotated[int, Meta(ge=1, le=64)]
    cutoff: Score
    seconds: Replicas = 0
    """Replicas that have their home elsewhere."""
    wanted: Annotated[str, Meta(max_length=64)] = ""
    """The volunteer it would gain most by, which is asked to come; empty: nobody."""

    @property
    def copies(self) -> int:
        """All holders of the stage, with either seat."""
        return self.replicas + self.seconds


OPEN, QUIET, COMMITTED = range(3)
"""Phases of a posting: arrivals; none for a while; places are final."""

POSTINGS: Final = Canonical(Posting, "posting")


def check_posting(posting: Posting, stages: int) -> None:
    """Refuse a posting about a stage that does not exist; raises ``RemoteProtocolError``."""
    if posting.stage >= stages:
        raise RemoteProtocolError("posting-stage", "there is no such stage", penalty=20)


def is_fresh(body: Body, wall_s: float) -> bool:
    """Tell whether a body is within its time to live, tolerating the swarm's clock skew."""
    age_s = wall_s - body.issued_ms / 1000
    return -limits.MAX_CLOCK_SKEW_S <= age_s <= LEASE_S + limits.MAX_CLOCK_SKEW_S
