"""Decides whether stages may be held now, and if not, why and until when. Pure.

An unknown fact counts against computing: an owner who allows computing only while the machine is
idle prefers no computing to being disturbed.
"""

from dataclasses import dataclass
from datetime import datetime, time, timedelta

from client.config import Settings
from client.schedule import parse_schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """The state of this machine."""

    used_bytes: int = 0
    """Sent and received today."""
    on_battery: bool | None = False
    """None: it is unknown."""
    idle: bool | str = True
    """Whether keyboard and screen are unused, or why that is unknown."""


@dataclass(frozen=True, slots=True)
class Held:
    """Stages may not be held now."""

    reason: str
    until: datetime | None = None
    """Local time from which they may be held; None: unknown."""


def decide(now: datetime, facts: Facts, settings: Settings) -> Held | None:
    """Return all reasons against holding stages at a local time; None: there is none.

    Args:
        now: naive local time.
        facts: the state of this machine.
        settings: the owner's limits.
    """
    reasons = (
        _quota(now, facts, settings),
        _hours(now, settings),
        _battery(facts, settings),
        _idle(facts, settings),
    )
    holds = [hold for hold in reasons if hold is not None]
    if not holds:
        return None
    ends = [hold.until for hold in holds if hold.until is not None]
    until = max(ends) if len(ends) == len(holds) else None
    return Held("; ".join(hold.reason for hold in holds), until)


def when_words(settings: Settings) -> list[str]:
    """Return, in words, when this volunteer may compute; empty: always."""
    idle = ["idle only"] if settings.only_when_idle else []
    battery = ["not on battery"] if settings.not_on_battery else []
    return [*idle, *battery, *filter(None, [settings.schedule])]


def _quota(now: datetime, facts: Facts, settings: Settings) -> Held | None:
    if not settings.daily_quota_bytes or facts.used_bytes < settings.daily_quota_bytes:
        return None
    midnight = datetime.combine(now.date() + timedelta(days=1), time())
    return Held(f"today's quota of {settings.daily_quota_bytes / 1e9:.3g} GB is used up", midnight)


def _hours(now: datetime, settings: Settings) -> Held | None:
    schedule = parse_schedule(settings.schedule)
    if schedule.allows(now):
        return None
    return Held(f"outside its hours ({settings.schedule})", schedule.next_change(now))


def _battery(facts: Facts, settings: Settings) -> Held | None:
    if not settings.not_on_battery or facts.on_battery is False:
        return None
    if facts.on_battery is None:
        return Held("cannot tell whether this machine runs on battery")
    return Held("on battery")


def _idle(facts: Facts, settings: Settings) -> Held | None:
    if not settings.only_when_idle or facts.idle is True:
        return None
    if facts.idle:
        return Held(f"cannot tell whether somebody uses this machine: {facts.idle}")
    return Held("somebody uses this machine")
