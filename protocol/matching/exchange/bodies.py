"""The signed bodies of full epochs: records for all members, and letters of the vote.

Integers only, bounded and canonical like those of ``protocol.matching.bodies``. A voter sends no
number about itself: rates and download times come from the view, which partners correct.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from protocol import limits
from protocol.ids import Stage
from protocol.matching.bodies import (
    MAX_BODY_BYTES,
    MAX_TERM,
    Body,
    Level,
    PeerText,
    Reason,
    Replicas,
    Score,
    StageIndex,
    decode_exactly,
)
from protocol.matching.exchange.load import Basis
from protocol.matching.exchange.projection import Projection
from protocol.wire.fields import Hash32

MAX_BALLOT_BYTES = 2048
MAX_NUMBER = 1000
"""Epochs of one chair, which lasts at most one beacon (10 minutes)."""
MAX_ATTEMPTS = 12
SUM_BITS = 56

Sum = Annotated[int, Meta(ge=0, lt=2**SUM_BITS)]
Step = Annotated[int, Meta(ge=0, le=limits.MAX_STAGES)]


class EpochId(NamedTuple):
    """Identifies an epoch: the chair's mandate and a number; ascending over all chairs."""

    beacon: Annotated[int, Meta(ge=0, lt=2**40)]
    term: Annotated[int, Meta(ge=1, le=MAX_TERM)]
    number: Annotated[int, Meta(ge=1, le=MAX_NUMBER)]


class Round(NamedTuple):
    """One attempt of an epoch: one vote at one quota."""

    epoch: EpochId
    attempt: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]


class Epoch(Body, frozen=True):
    """Record of the chair (``stage`` 0): the phase of the epoch, or its decision."""

    round: Round
    phase: Annotated[int, Meta(ge=0, le=4)]
    quota_percent: Annotated[int, Meta(ge=1, le=100)]
    fair: Level
    r: Annotated[int, Meta(ge=1, le=64)]
    digest: Hash32
    """In FREEZE of the ballots that showed quiet, in COMMIT of the plan, else zeros."""
    reason: Reason


COLLECT, LATE, FREEZE, COMMIT, ABORT = range(5)
"""Votes come in; missing voters stay at home; the vote is over; all move; nobody moves."""

RUNNING = (COLLECT, LATE, FREEZE)
NO_DIGEST = bytes(32)


class Ballot(Body, frozen=True):
    """Record of a stage's box: the progress of its vote and, once frozen, the result."""

    round: Round
    basis: Basis
    electorate: Replicas
    """Volunteers at home here that may be matched again."""
    held: Replicas
    """Places given to voters of any home."""
    staying: Replicas
    """Own electors without a place at any stage, who stay."""
    held_sum: Sum
    """Sum of the fingerprints of (voter, this stage) over the places given."""
    known_sum: Sum
    """The same sum over (own elector, stage where it says to have a place)."""
    changes: Annotated[int, Meta(ge=0, lt=2**31)]
    """Number of changes of the box in this attempt."""
    cutoff: Score
    quota: Level
    projection: Projection | None = None
    """None until the box is frozen."""


class Attest(Body, frozen=True):
    """Record of another candidate: it has recomputed a frozen ballot, or the chair's decision."""

    round: Round
    decision: bool
    digest: Hash32


class Call(Body, frozen=True):
    """The box calls an elector of its stage to vote."""

    volunteer: PeerText
    round: Round


class Vote(Body, frozen=True):
    """An elector of stage ``home`` asks for a place; ``step`` counts its wishes from the best."""

    steward: PeerText
    round: Round
    home: StageIndex
    step: Step


class Keep(Body, frozen=True):
    """The box keeps the voter until it drops it."""

    volunteer: PeerText
    round: Round
    score: Score


class Drop(Body, frozen=True):
    """The box does not keep the voter in this attempt."""

    volunteer: PeerText
    round: Round
    cutoff: Score


class Intent(Body, frozen=True):
    """An elector tells its home box where it has a place; ``to`` None: nowhere, so it stays.

    With ``step`` 0 and ``to`` None it declines to vote.
    """

    steward: PeerText
    round: Round
    step: Step
    to: StageIndex | None


class Noted(Body, frozen=True):
    """The home box has read the intent of a step."""

    volunteer: PeerText
    round: Round
    step: Step


ToBox = Vote | Intent
ToVoter = Call | Keep | Drop | Noted
Letter = ToBox | ToVoter
Spread = Epoch | Ballot | Attest

EPOCH_KIND, BALLOT_KIND, ATTEST_KIND = "epoch", "ballot", "attest"
KINDS: dict[type[Body], str] = {
    Epoch: EPOCH_KIND,
    Ballot: BALLOT_KIND,
    Attest: ATTEST_KIND,
    Call: "call",
    Vote: "vote",
    Keep: "keep",
    Drop: "drop",
    Intent: "intent",
    Noted: "noted",
}
_decoders: dict[str, msgspec.msgpack.Decoder[Letter | Spread]] = {
    kind: msgspec.msgpack.Decoder(body) for body, kind in KINDS.items()
}


def is_ours(kind: str) -> bool:
    """Tell whether a kind belongs to full epochs."""
    return kind in _decoders


def decode(kind: str, encoded: bytes) -> Letter | Spread:
    """Parse a body of a kind that ``is_ours``.

    Raises:
        RemoteProtocolError: too long, malformed, out of range or not canonical.
    """
    bound = MAX_BALLOT_BYTES if kind == BALLOT_KIND else MAX_BODY_BYTES
    return decode_exactly(_decoders[kind], encoded, bound)


def key_of(body: Spread) -> str:
    """Return the key of a record; decisions have a key apart from the stages' records."""
    is_decision = isinstance(body, Epoch) or (isinstance(body, Attest) and body.decision)
    return "epoch" if is_decision else str(Stage(body.stage))
