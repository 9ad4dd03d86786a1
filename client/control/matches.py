"""A node's matching: the typed answer of the control socket's ``matches``.

Plain data, no behaviour.
"""

from __future__ import annotations

from msgspec import Struct

from protocol.matching.overview import StageOverview


class SeatMatch(Struct, frozen=True, kw_only=True):
    """One of our seats."""

    seat: int
    """0: our home; 1: our second stage."""
    stage: int | None
    """None: it has none yet."""
    state: str
    """``free``, ``proposed``, ``held``, ``fetching``, ``serving``, ``leaving``, ``left``."""


class PayingMove(Struct, frozen=True, kw_only=True):
    """A move that would pay and that both stages would agree to: a blocking pair."""

    home: int
    to: int


class MatchesSnapshot(Struct, frozen=True, kw_only=True):
    """One moment of one node's matching."""

    state: str
    """State of our first seat; ``measuring`` before the matching has begun."""
    seats: list[SeatMatch]
    stages: list[StageOverview]
    """Stages with a steward, the most wanted first."""
    paying_moves: list[PayingMove]
    decides: list[int]
    """Stages that we are the steward of."""
