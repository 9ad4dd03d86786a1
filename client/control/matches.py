"""A node's matching: the typed answer of the control socket's ``matches``.

Plain data, no behaviour. As with ``client.control.snapshot``, fields may be added;
``MATCHES_VERSION`` rises when one changes its meaning or is removed.
"""

from __future__ import annotations

from msgspec import Struct

MATCHES_VERSION = 1


class SeatMatch(Struct, frozen=True, kw_only=True):
    """One of our seats."""

    seat: int
    """0: our home; 1: our second stage."""
    stage: int | None
    """None: it has none yet."""
    state: str
    """``free``, ``proposed``, ``held``, ``fetching``, ``serving``, ``leaving``, ``left``."""


class StageMatch(Struct, frozen=True, kw_only=True):
    """One stage, in the order in which we want them."""

    stage: int
    steward: str
    """The member that decides who holds it."""
    shared_level: float
    """Microbatches per second of its replicas together, after dual homing."""
    redundancy: int
    """Replicas it should have (r)."""
    seat: int | None
    """Our seat that holds it."""
    obstacle: str
    """The reason why a proposal is useless; empty: it is not."""
    stay: str
    """The reason why a move there from our home would not pay; empty: it would, or we have no
    home."""


class PayingMove(Struct, frozen=True, kw_only=True):
    """A move that would pay and that both stages would agree to: a blocking pair."""

    home: int
    to: int


class MatchesSnapshot(Struct, frozen=True, kw_only=True):
    """One moment of one node's matching."""

    state: str
    """State of our first seat; ``measuring`` before the matching has begun."""
    seats: list[SeatMatch]
    stages: list[StageMatch]
    """Stages with a steward, the most wanted first."""
    paying_moves: list[PayingMove]
    decides: list[int]
    """Stages that we are the steward of."""
    schema_version: int = MATCHES_VERSION
