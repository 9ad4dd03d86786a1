"""The letters of the matching: what volunteers and stewards say to each other.

Times are integers, in milliseconds. Every field is bounded. A letter counts as its author's only on
the link to that author. It names its mandate and its issue time, which rises with each letter of an
author, so a copy has no effect.
"""

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import Stage
from protocol.wire.fields import Reason

SEATS = 2
MAX_TERM = 1000
"""Successions within one beacon (10 minutes); a liar can exhaust the terms only until it ends."""

Millis = Annotated[int, Meta(ge=0, lt=2**48)]
Epoch = Annotated[int, Meta(ge=0, lt=2**31)]


class Mandate(NamedTuple):
    """Identifies a stewardship of a stage; a later beacon or a higher term replaces it."""

    beacon: Annotated[int, Meta(ge=0, lt=2**40)]
    term: Annotated[int, Meta(ge=1, le=MAX_TERM)]


class Body(Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of every body. ``issued_ms`` is Unix time at the author, and rises with each letter."""

    stage: Annotated[Stage, Meta(ge=0, lt=limits.MAX_STAGES)]
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


ToSteward = Propose | Withdraw
ToVolunteer = Hold | Reject
