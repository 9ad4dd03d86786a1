"""The doctor's checks of the owner's limits."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path

import pytest

from client.cli.diagnosis.limit_checks import (
    check_battery,
    check_hours,
    check_idle,
    check_quota,
    examine_limits,
)
from client.config import Settings
from client.limits.idle import Idleness
from client.limits.usage import DayUse
from client.schedule import parse_schedule
from client.store.persisted import Persisted
from client.train.machine.limiting import FILE_NAME

NOON = datetime(2026, 3, 2, 12, 0)
GB = 10**9


def test_only_what_is_set_is_checked(tmp_path: Path) -> None:
    assert list(examine_limits(Settings(), tmp_path)) == []
    settings = Settings(schedule="22:00-07:00", daily_quota_bytes=GB)
    assert [check.name for check in examine_limits(settings, tmp_path)] == ["schedule", "quota"]


@pytest.mark.parametrize(
    ("found", "status"),
    [(Idleness(True), "ok"), (Idleness(False), "ok"), (Idleness(None, "no logind"), "fail")],
)
def test_idleness(found: Idleness, status: str) -> None:
    check = check_idle(300, lambda after_s: found)
    assert check.status == status
    assert bool(check.next_step) == (status == "fail")


@pytest.mark.parametrize(("found", "status"), [(True, "ok"), (False, "ok"), (None, "fail")])
def test_battery(found: bool | None, status: str) -> None:
    assert check_battery(lambda: found).status == status


def test_hours() -> None:
    nights = parse_schedule("22:00-07:00")
    assert check_hours(nights, NOON).words == "outside its hours until Mon 22:00 (22:00-07:00)"
    always = parse_schedule("00:00-24:00")
    assert check_hours(always, NOON).words == "inside its hours (00:00-24:00)"


@pytest.mark.parametrize(
    ("use", "status", "words"),
    [
        (None, "ok", "0 B of 1.0 GB used today"),
        (DayUse(date(2026, 3, 1), GB), "ok", "0 B of 1.0 GB used today"),
        (DayUse(NOON.date(), GB), "warn", "1.0 GB of 1.0 GB used today"),
    ],
)
def test_quota(tmp_path: Path, use: DayUse | None, status: str, words: str) -> None:
    if use is not None:
        Persisted(tmp_path / FILE_NAME, DayUse).save(use)
    check = check_quota(GB, tmp_path, NOON)
    assert (check.status, check.words) == (status, words)
