"""Switches for the design's ingredients: all are on, unless an ablation turns one off."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.manifest import Policy


@dataclass(frozen=True, slots=True)
class Design:
    """Switches for experiments; a swarm runs the defaults."""

    dual_homing: bool = True
    """The faster volunteers also hold an adjacent stage and split their time."""
    urgency: bool = True
    """Stages below r replicas come first in every volunteer's preferences."""
    advantage: bool = True
    """Stages prefer volunteers with the least to offer elsewhere (rho); if off, the fastest."""
    moves: bool = True
    """Replicas move to a stage that calls them."""
    dual_share_percent: int = 40
    """Share of the volunteers, the faster ones, that hold a second stage."""

    @classmethod
    def of(cls, policy: Policy) -> Design:
        """Return the design of a swarm: all switches on, with its founder's second stages."""
        percent = policy.dual_homing_percent
        return cls(dual_homing=percent > 0, dual_share_percent=percent)


FULL = Design()
