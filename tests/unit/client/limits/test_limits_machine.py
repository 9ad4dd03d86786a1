"""The limits' view of this machine: idleness and battery."""

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.limits.battery import on_battery
from client.limits.idle import (
    IOREG,
    LOGIND,
    MAX_ANSWER_BYTES,
    ask,
    look,
    parse_ioreg,
    parse_logind,
    parse_xprintidle,
)

NOW = 1_700_000_000.0
IDLE_FOR_AN_HOUR = f"IdleHint=yes\nIdleSinceHint={int((NOW - 3600) * 1e6)}\n"
IN_USE = f"IdleHint=no\nIdleSinceHint={int((NOW - 3600) * 1e6)}\n"
X11 = {"DISPLAY": ":0"}
WAYLAND = {"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}


@pytest.mark.parametrize(
    ("logind", "xprintidle", "environ", "idle"),
    [
        (IDLE_FOR_AN_HOUR, None, {}, True),
        (IN_USE, None, {}, False),
        ("IdleHint=yes\nIdleSinceHint=0\n", None, {}, True),  # a machine without sessions
        (f"IdleHint=yes\nIdleSinceHint={int((NOW - 10) * 1e6)}\n", None, {}, False),
        (None, "600000\n", X11, True),
        (None, "1000\n", X11, False),
        (IN_USE, "600000\n", X11, True),  # a desktop that tells logind nothing
        (IN_USE, "600000\n", WAYLAND, False),  # the X server sees no Wayland input
        (IDLE_FOR_AN_HOUR, "error", X11, True),
        (IN_USE, "600000", {}, False),
        (None, None, X11, None),
        ("Failed to connect to bus", None, {}, None),
    ],
)
def test_idleness(
    logind: str | None, xprintidle: str | None, environ: dict[str, str], idle: bool | None
) -> None:
    def run(command: Sequence[str]) -> str | None:
        return logind if command == LOGIND else xprintidle

    found = look(300, run, environ, NOW, "linux")
    assert isinstance(found, str) if idle is None else found is idle


@pytest.mark.parametrize(
    ("answer", "idle"),
    [
        ('+-o IOHIDSystem\n    {\n      "HIDIdleTime" = 600000000000\n    }\n', True),
        ('      "HIDIdleTime" = 1000000000\n', False),
        ("", None),
        (None, None),
    ],
)
def test_idleness_of_a_mac(answer: str | None, idle: bool | None) -> None:
    found = look(300, lambda command: answer if command == IOREG else None, X11, NOW, "darwin")
    assert isinstance(found, str) if idle is None else found is idle


@given(st.text(max_size=200))
def test_no_answer_of_a_program_crashes(answer: str) -> None:
    parse_logind(answer, NOW)
    parse_xprintidle(answer)
    parse_ioreg(answer)
    assert isinstance(look(300, lambda command: answer, X11, NOW), bool | str)


@pytest.mark.parametrize(
    "command",
    [
        ("no-such-program-anywhere",),
        (sys.executable, "-c", "import sys; print('IdleHint=yes'); sys.exit(1)"),
    ],
)
def test_a_program_that_is_not_there_or_fails_gives_no_answer(command: Sequence[str]) -> None:
    assert ask(command) is None


def test_a_program_that_talks_too_much_is_cut_short() -> None:
    answer = ask((sys.executable, "-c", "print('x' * 10**6)"))
    assert len(answer) == MAX_ANSWER_BYTES


def fails() -> Any:
    raise OSError("no /sys")


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (lambda: None, False),
        (lambda: SimpleNamespace(power_plugged=True), False),
        (lambda: SimpleNamespace(power_plugged=False), True),
        (lambda: SimpleNamespace(power_plugged=None), None),
        (fails, None),
    ],
)
def test_battery(read: Any, answer: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", read, raising=False)
    assert on_battery() is answer
