"""The doctor's checks of the owner's limits."""

from __future__ import annotations

import pytest

from client.cli.diagnosis.checks_outside import (
    check_battery,
    check_idle,
    examine_limits,
)
from client.config import Settings
from client.limits.idle import Idleness


def test_only_what_is_set_is_checked() -> None:
    assert list(examine_limits(Settings())) == []
    settings = Settings(not_on_battery=True, only_when_idle=True)
    assert [check.name for check in examine_limits(settings)] == ["idle", "battery"]


@pytest.mark.parametrize(
    ("found", "status"),
    [(Idleness(True), "ok"), (Idleness(False), "ok"), (Idleness(None, "no logind"), "fail")],
)
def test_idleness(found: Idleness, status: str) -> None:
    check = check_idle(found)
    assert check.status == status
    assert bool(check.next_step) == (status == "fail")


@pytest.mark.parametrize(("found", "status"), [(True, "ok"), (False, "ok"), (None, "fail")])
def test_battery(found: bool | None, status: str) -> None:
    assert check_battery(found).status == status
