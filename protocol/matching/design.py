"""Which ingredients of the design are in force: all, unless an ablation leaves one out."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.manifest import Policy


@dataclass(frozen=True, slots=True)
class Design:
    """Switches for experiments; a swarm runs the defaults."""

    dual_homing: bool = True
    """The faster volunteers also hold an adjacent stage and split their time."""
    urgency: bool = True
    """Stages below r replicas come first in every volunteer's wishes."""
    advantage: bool = True
    """Stages prefer who has the least to offer elsewhere (rho); without it, who is fastest."""
    commit_rule: bool = True
    """A full epoch's plan must pass the projection; without it any gain at its end will do."""
    hysteresis: bool = True
    """A stage already held counts ten per cent more (phi)."""
    epochs: bool = True
    """Incumbents may be reassigned by full epochs and move by consent."""
    dual_share_percent: int = 40
    """How many of the volunteers, the faster ones, hold a second stage."""

    @classmethod
    def of(cls, policy: Policy) -> Design:
        """Return what a swarm runs: everything, with as many second stages as its founder chose."""
        percent = policy.dual_homing_percent
        return cls(dual_homing=percent > 0, dual_share_percent=percent)


FULL = Design()
