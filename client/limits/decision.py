"""Whether stages may be held now, and if not, why and until when. Pure: facts in, decision out.

What cannot be known counts against computing: who asked to lend a machine only while it is idle
would rather lend nothing than be disturbed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta

from client.limits.limits import Limits


@dataclass(frozen=True, slots=True)
class Facts:
    """How this machine is. None: it cannot be known, and ``unknown`` says why."""

    used_bytes: int = 0
    """Sent and received today."""
    on_battery: bool | None = False
    idle: bool | None = True
    """Whether nobody uses keyboard and screen."""
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Nothing speaks against it."""


@dataclass(frozen=True, slots=True)
class Held:
    """Not now."""

    reason: str
    until: datetime | None = None
    """When it will be allowed, by the local clock; None: that is not known beforehand."""


def decide(now: datetime, facts: Facts, limits: Limits) -> Allowed | Held:
    """Decide for a moment of the local clock (naive); all reasons are named."""
    holds = [hold for hold in _holds(now, facts, limits) if hold is not None]
    if not holds:
        return Allowed()
    ends = [hold.until for hold in holds if hold.until is not None]
    until = max(ends) if len(ends) == len(holds) else None
    return Held("; ".join(hold.reason for hold in holds), until)


def _holds(now: datetime, facts: Facts, limits: Limits) -> list[Held | None]:
    return [
        _quota(now, facts, limits),
        _hours(now, limits),
        _battery(facts, limits),
        _idle(facts, limits),
    ]


def _quota(now: datetime, facts: Facts, limits: Limits) -> Held | None:
    if not limits.daily_bytes or facts.used_bytes < limits.daily_bytes:
        return None
    midnight = datetime.combine(now.date() + timedelta(days=1), time())
    return Held(f"today's quota of {limits.daily_bytes / 1e9:.3g} GB is used up", midnight)


def _hours(now: datetime, limits: Limits) -> Held | None:
    if limits.schedule.allows(now):
        return None
    return Held(f"outside its hours ({limits.schedule})", limits.schedule.next_change(now))


def _battery(facts: Facts, limits: Limits) -> Held | None:
    if not limits.not_on_battery or facts.on_battery is False:
        return None
    if facts.on_battery is None:
        return Held("cannot tell whether this machine runs on battery")
    return Held("on battery")


def _idle(facts: Facts, limits: Limits) -> Held | None:
    if not limits.only_when_idle or facts.idle:
        return None
    if facts.idle is None:
        return Held(f"cannot tell whether somebody uses this machine: {facts.unknown}")
    return Held("somebody uses this machine")
