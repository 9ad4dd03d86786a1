"""The checks of ``volunteer doctor`` for the owner's limits: whether each can be kept here."""

from __future__ import annotations

from collections.abc import Iterator

from client.cli.diagnosis.checks import Check
from client.config import Settings
from client.limits.battery import on_battery
from client.limits.idle import Idleness, ask, look


def examine_limits(settings: Settings) -> Iterator[Check]:
    """Yield a check of every limit that is set and may be impossible to keep."""
    if settings.only_when_idle:
        yield check_idle(look(60 * settings.idle_after_minutes, ask))
    if settings.not_on_battery:
        yield check_battery(on_battery())


def check_idle(found: Idleness) -> Check:
    """Whether idleness of this machine can be detected."""
    if found.idle is None:
        step = "install xprintidle (X11) or use logind; until then only_when_idle never computes"
        return Check("idle", "fail", found.unknown, step)
    return Check("idle", "ok", f"{'nobody' if found.idle else 'somebody'} uses this machine")


def check_battery(found: bool | None) -> Check:
    """Whether battery power can be detected."""
    if found is None:
        step = "with not_on_battery the volunteer does not compute until the system reports it"
        return Check("battery", "fail", "the system does not report its power source", step)
    return Check("battery", "ok", "on battery" if found else "mains power")
