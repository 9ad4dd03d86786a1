"""The limits' view of this machine: idleness, battery, and the GPU's power cap."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import UserError
from client.limits.battery import on_battery
from client.limits.idle import (
    IOREG,
    LOGIND,
    MAX_ANSWER_BYTES,
    Idleness,
    ask,
    look,
    parse_ioreg,
    parse_logind,
    parse_xprintidle,
)
from client.limits.power import PowerCap
from client.limits.sensors import Reading, read_sensors

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
    assert found.idle is idle
    assert bool(found.unknown) == (idle is None)


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
    assert found.idle is idle
    assert bool(found.unknown) == (idle is None)


@given(st.text(max_size=200))
def test_no_answer_of_a_program_crashes(answer: str) -> None:
    parse_logind(answer, NOW)
    parse_xprintidle(answer)
    parse_ioreg(answer)
    assert isinstance(look(300, lambda command: answer, X11, NOW), Idleness)


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
    assert answer is not None
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
def test_battery(read: Any, answer: bool | None) -> None:
    assert on_battery(read) is answer


class FakeNvml:
    """One GPU with a cap of 350 W, between 100 and 400."""

    class NVMLError(Exception):
        pass

    class NVMLError_NoPermission(NVMLError):  # noqa: N801
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801
        pass

    def __init__(self, refusal: type[Exception] | None = None, driver: bool = True) -> None:
        self.cap_mw, self.opened, self.refusal, self.driver = 350_000, 0, refusal, driver
        self.asked: list[object] = []

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        self.asked.append(index)
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        self.asked.append(name)
        return "handle"

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:  # noqa: N802
        return self.cap_mw

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 71_500

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        assert sensor == 0
        return 63

    def nvmlDeviceGetTemperatureThreshold(self, handle: str, which: int) -> int:  # noqa: N802
        raise self.NVMLError_NotSupported("no")

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=5)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: str) -> list[int]:  # noqa: N802
        return [100_000, 400_000]

    def nvmlDeviceSetPowerManagementLimit(self, handle: str, cap_mw: int) -> None:  # noqa: N802
        if self.refusal is not None:
            raise self.refusal("no")
        self.cap_mw = cap_mw


def test_the_power_cap_is_set_and_put_back() -> None:
    nvml = FakeNvml()
    cap = PowerCap(nvml, {})
    assert "200 W" in cap.set(200, "cuda:1")
    assert (nvml.cap_mw, nvml.opened, nvml.asked) == (200_000, 1, [1])
    cap.restore()
    cap.restore()
    assert (nvml.cap_mw, nvml.opened) == (350_000, 0)


def test_a_look_changes_nothing() -> None:
    nvml = FakeNvml()
    assert "200 W is possible" in PowerCap(nvml, {}).check(200, "auto")
    assert "already" in PowerCap(nvml, {}).check(350, "auto")
    assert (nvml.cap_mw, nvml.opened) == (350_000, 0)


def test_a_lower_cap_of_the_owner_stays() -> None:
    nvml = FakeNvml()
    cap = PowerCap(nvml, {})
    assert "already" in cap.set(380, "auto")
    cap.restore()
    assert (nvml.cap_mw, nvml.opened) == (350_000, 0)


@pytest.mark.parametrize(
    ("visible", "asked"), [("", 0), ("3,1", 3), ("GPU-abc", "GPU-abc"), (" , ", 0)]
)
def test_the_gpu_that_torch_sees_first_is_capped(visible: str, asked: object) -> None:
    nvml = FakeNvml()
    PowerCap(nvml, {"CUDA_VISIBLE_DEVICES": visible}).set(200, "auto")
    assert nvml.asked == [asked]


@pytest.mark.parametrize(
    ("nvml", "watts", "device", "problem", "next_step"),
    [
        (FakeNvml(FakeNvml.NVMLError_NoPermission), 200, "auto", "only root", "nvidia-smi -pl 200"),
        (FakeNvml(FakeNvml.NVMLError_NotSupported), 200, "auto", "cannot be changed", ""),
        (FakeNvml(FakeNvml.NVMLError), 200, "auto", "cannot be set", ""),
        (FakeNvml(driver=False), 200, "auto", "Not Found", ""),
        (FakeNvml(), 50, "auto", "50 W is not", "100 to 400 W"),
        (FakeNvml(), 200, "cpu", "for a GPU", ""),
    ],
)
def test_why_there_is_no_cap_is_said(
    nvml: FakeNvml, watts: int, device: str, problem: str, next_step: str
) -> None:
    cap = PowerCap(nvml, {})
    with pytest.raises(UserError, match=problem) as caught:
        cap.set(watts, device)
    assert next_step in caught.value.next_step
    cap.restore()
    assert (nvml.cap_mw, nvml.opened) == (350_000, 0)


def test_the_driver_tells_power_and_temperature() -> None:
    nvml = FakeNvml()
    (reading,) = read_sensors(["cuda:1"], nvml, {"CUDA_VISIBLE_DEVICES": "4,GPU-abc"})
    assert nvml.asked == ["GPU-abc"]
    assert reading == Reading("cuda:1", 71.5, 350.0, 63, None, 5)
    assert nvml.opened == 0


def test_without_a_driver_or_a_card_nothing_is_told() -> None:
    assert read_sensors(["auto"], FakeNvml(driver=False), {}) == []
    assert read_sensors(["cpu", "mps"], None, {}) == []
    gone = FakeNvml()
    gone.nvmlDeviceGetHandleByIndex = _refused(gone)  # type: ignore[method-assign]
    assert read_sensors(["cuda"], gone, {}) == []
    assert gone.opened == 0


def _refused(nvml: FakeNvml) -> Any:
    def refuse(index: int) -> str:
        raise nvml.NVMLError("GPU is lost")

    return refuse
