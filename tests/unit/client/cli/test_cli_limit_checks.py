"""The doctor's checks of the owner's limits."""

from __future__ import annotations

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


def test_what_cannot_be_found_out_fails_with_what_to_do() -> None:
    for idle in (True, False):
        assert check_idle(Idleness(idle)).status == check_battery(idle).status == "ok"
    unknown = check_idle(Idleness(None, "no logind"))
    assert (unknown.status, check_battery(None).status) == ("fail", "fail")
    assert unknown.next_step
