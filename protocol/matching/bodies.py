"""The bodies of the matching: letters of volunteers and stewards, and postings.

Integers only (rates in micro-microbatches per second, times in milliseconds), so NaN, infinities
and 1e30 cannot be expressed. Every field is bounded and the encoding is canonical, so equal bodies
have equal bytes. A letter counts as its author's only on the link to that author. It names its
mandate and its issue time, which rises with each letter of an author, so a copy has no effect.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from protocol import limits
from protocol.effects import Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, Stage
from protocol.matching import preferences
from protocol.matching.timing import LEASE_S
from protocol.wire.canonical import Canonical
from protocol.wire.fields import Reason, StageIndex
from protocol.wire.messages import Letter

MAX_BODY_BYTES = 1024
SEATS = 2
MAX_TERM = 1000
"""Successions within one beacon (10 minutes); a liar can exhaust the terms only until it ends."""

Level = Annotated[int, Meta(ge=0, le=preferences.MAX_RATE * 100_000)]
Score = Annotated[int, Meta(ge=0, lt=preferences.MAX_SCORE)]
Millis = Annotated[int, Meta(ge=0, lt=2**48)]
Epoch = Annotated[int, Meta(ge=0, lt=2**31)]
Replicas = Annotated[int, Meta(ge=0, le=100_000)]
Phase = Annotated[int, Meta(ge=0, le=2)]


class Mandate(NamedTuple):
    """Identifies a stewardship of a stage; a later beacon or a higher term replaces it."""

    beacon: Annotated[int, Meta(ge=0, lt=2**40)]
    term: Annotated[int, Meta(ge=1, le=MAX_TERM)]


class Body(Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of every body. ``issued_ms`` is Unix time at the author, and rises with each letter."""

    stage: StageIndex
    mandate: Mandate
    issued_ms: Millis


class Propose(Body, frozen=True):
    """A volunteer asks the steward for a place, or renews the one it has."""

    seat: Annotated[int, Meta(ge=0, lt=SEATS)]
    """0: its home; 1: its second stage."""
    bound: bool
    """It fetches or serves the stage."""


class Withdraw(Body, frozen=True):
    """The volunteer gives up its place."""

    reason: Reason


class Hold(Body, frozen=True):
    """The steward keeps the volunteer; ``locked``: the place is final, fetch."""

    asked_ms: Millis
    """Issue time of the letter that this answers."""
    locked: bool


class Reject(Body, frozen=True):
    """The stage does not keep the volunteer in this epoch."""

    epoch: Epoch
    asked_ms: Millis
    reason: Reason


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

ToSteward = Propose | Withdraw
ToVolunteer = Hold | Reject
Direct = ToSteward | ToVolunteer

KINDS: dict[type[Direct | Posting], str] = {
    body: body.__name__.lower() for body in (Propose, Withdraw, Hold, Reject, Posting)
}
_formats = {
    kind: Canonical[Direct | Posting](body, "matching-body") for body, kind in KINDS.items()
}


def encode_body(body: Direct | Posting) -> bytes:
    """Return the canonical bytes that are sent, or signed."""
    return _formats[KINDS[type(body)]].encode(body)


def letter(to: str, body: Direct) -> Send:
    """Return the letter that carries a body."""
    return Send(PeerId(to), Letter(KINDS[type(body)], encode_body(body)))


def decode_body(kind: str, encoded: bytes) -> Direct | Posting:
    """Parse a body of a given kind.

    Raises:
        RemoteProtocolError: unknown kind, too long, malformed, out of range or not canonical.
    """
    if kind not in _formats:
        raise RemoteProtocolError("matching-kind-unknown", kind[: limits.MAX_NAME_CHARS])
    if len(encoded) > MAX_BODY_BYTES:
        raise RemoteProtocolError("matching-body-too-long", f"{len(encoded)} bytes", penalty=20)
    return _formats[kind].parse(encoded)


def is_fresh(body: Body, wall_s: float) -> bool:
    """Tell whether a body is within its time to live, tolerating the swarm's clock skew."""
    age_s = wall_s - body.issued_ms / 1000
    return -limits.MAX_CLOCK_SKEW_S <= age_s <= LEASE_S + limits.MAX_CLOCK_SKEW_S


def stage_of(body: Body) -> Stage:
    """Return the stage a body is about."""
    return Stage(body.stage)
