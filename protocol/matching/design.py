"""Switches for the design's ingredients: all are on, unless an ablation turns one off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Design:
    """Switches for experiments; a swarm runs the defaults."""

    dual_homing: bool = True
    """Volunteers that can also hold an adjacent stage and split their time."""
    urgency: bool = True
    """Stages below r replicas come first in every volunteer's preferences."""
    advantage: bool = True
    """Stages prefer volunteers with the least to offer elsewhere (rho); if off, the fastest."""
    moves: bool = True
    """Replicas move to a stage that calls them."""


FULL = Design()
