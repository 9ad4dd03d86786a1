"""Whether stages may be held now, and if not, why and until when. Pure: facts in, decision out.

What cannot be known counts against computing: who asked to lend a machine only while it is idle
would rather lend nothing than be disturbed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta

from client.config import Settings
from client.schedule import parse_schedule


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


def decide(now: datetime, facts: Facts, settings: Settings) -> Allowed | Held:
    """Decide for a moment of the local clock (naive); all reasons are named."""
    holds = [hold for hold in _holds(now, facts, settings) if hold is not None]
    if not holds:
        return Allowed()
    ends = [hold.until for hold in holds if hold.until is not None]
    until = max(ends) if len(ends) == len(holds) else None
    return Held("; ".join(hold.reason for hold in holds), until)


def when_words(settings: Settings) -> list[str]:
    """Say when it may compute; empty: always."""
    idle = ["idle only"] if settings.only_when_idle else []
    battery = ["not on battery"] if settings.not_on_battery else []
    return [*idle, *battery, *filter(None, [settings.schedule])]


def _holds(now: datetime, facts: Facts, settings: Settings) -> list[Held | None]:
    return [
        _quota(now, facts, settings),
        _hours(now, settings),
        _battery(facts, settings),
        _idle(facts, settings),
    ]


def _quota(now: datetime, facts: Facts, settings: Settings) -> Held | None:
    if not settings.daily_quota_bytes or facts.used_bytes < settings.daily_quota_bytes:
        return None
    midnight = datetime.combine(now.date() + timedelta(days=1), time())
    return Held(f"today's quota of {settings.daily_quota_bytes / 1e9:.3g} GB is used up", midnight)


def _hours(now: datetime, settings: Settings) -> Held | None:
    schedule = parse_schedule(settings.schedule)
    if schedule.allows(now):
        return None
    return Held(f"outside its hours ({schedule})", schedule.next_change(now))


def _battery(facts: Facts, settings: Settings) -> Held | None:
    if not settings.not_on_battery or facts.on_battery is False:
        return None
    if facts.on_battery is None:
        return Held("cannot tell whether this machine runs on battery")
    return Held("on battery")


def _idle(facts: Facts, settings: Settings) -> Held | None:
    if not settings.only_when_idle or facts.idle:
        return None
    if facts.idle is None:
        return Held(f"cannot tell whether somebody uses this machine: {facts.unknown}")
    return Held("somebody uses this machine")
