"""The doctor's checks of the owner's limits."""

from __future__ import annotations

from datetime import datetime

import pytest

from client.cli.diagnosis.limit_checks import (
    check_battery,
    check_idle,
    check_power,
    examine_limits,
)
from client.config import Settings
from client.errors import UserError
from client.limits.idle import Idleness
from client.limits.power import PowerCap

NOON = datetime(2026, 3, 2, 12, 0)
GB = 10**9


def test_only_what_is_set_is_checked() -> None:
    assert list(examine_limits(Settings())) == []
    settings = Settings(not_on_battery=True, power_limit_w=100)
    assert [check.name for check in examine_limits(settings)] == ["battery", "power limit"]


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


class Cap(PowerCap):
    """Answers without a GPU."""

    def __init__(self, refusal: UserError | None) -> None:
        self.refusal = refusal

    def check(self, watts: int, device: str) -> str:
        if self.refusal is not None:
            raise self.refusal
        return "possible"


@pytest.mark.parametrize(
    ("refusal", "root", "status", "next_step"),
    [
        (None, True, "ok", ""),
        (None, False, "warn", "sudo nvidia-smi -pl 150"),
        (UserError("no driver", "install it"), True, "warn", "install it"),
    ],
)
def test_power(refusal: UserError | None, root: bool, status: str, next_step: str) -> None:
    check = check_power(150, "auto", Cap(refusal), root)
    assert check.status == status
    assert next_step in check.next_step
