"""The checks of ``volunteer doctor`` for the owner's limits: whether each can be kept here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from client.cli.diagnosis.checks import Check
from client.cli.terminal.output import human_bytes
from client.config import Settings
from client.limits.battery import on_battery
from client.limits.idle import Idleness, ask, look
from client.limits.usage import DayUse
from client.schedule import Schedule, parse_schedule
from client.store.persisted import Persisted
from client.train.machine.limiting import FILE_NAME


def examine_limits(settings: Settings, data: Path) -> Iterator[Check]:
    """Yield a check of every limit that is set and may be impossible to keep."""
    if settings.only_when_idle:
        yield check_idle(60 * settings.idle_after_minutes)
    if settings.not_on_battery:
        yield check_battery()
    if settings.schedule:
        yield check_hours(parse_schedule(settings.schedule), datetime.now())
    if settings.daily_quota_bytes:
        yield check_quota(settings.daily_quota_bytes, data, datetime.now())


def check_idle(after_s: int, find: Callable[[int], Idleness] | None = None) -> Check:
    """Whether idleness of this machine can be detected."""
    found = find(after_s) if find else look(after_s, ask)
    if found.idle is None:
        next_step = (
            "install xprintidle (X11) or use logind; until then only_when_idle never computes"
        )
        return Check("idle", "fail", found.unknown, next_step)
    words = "nobody uses this machine" if found.idle else "somebody uses this machine"
    return Check("idle", "ok", words)


def check_battery(read: Callable[[], bool | None] = on_battery) -> Check:
    """Whether battery power can be detected."""
    found = read()
    if found is None:
        next_step = "with not_on_battery the volunteer does not compute until the system reports it"
        return Check("battery", "fail", "the system does not report its power source", next_step)
    return Check("battery", "ok", "on battery" if found else "mains power")


def check_hours(schedule: Schedule, now: datetime) -> Check:
    """Whether the schedule allows computing at this moment of the local clock."""
    inside, change = schedule.allows(now), schedule.next_change(now)
    until = f" until {change:%a %H:%M}" if change else ""
    words = f"{'inside' if inside else 'outside'} its hours{until} ({schedule})"
    return Check("schedule", "ok", words)


def check_quota(daily_bytes: int, data: Path, now: datetime) -> Check:
    """The rest of the day's quota; ``daily_bytes`` is the quota, ``data`` the folder with the day's
    use, ``now`` the local time."""
    use = Persisted(data / FILE_NAME, DayUse).peek()
    used_bytes = use.used_bytes if use is not None and use.day == now.date() else 0
    words = f"{human_bytes(used_bytes)} of {human_bytes(daily_bytes)} used today"
    if used_bytes >= daily_bytes:
        return Check(
            "quota", "warn", words, "it pauses until midnight; raise --daily-quota to resume now"
        )
    return Check("quota", "ok", words)
