"""Detects whether this machine runs on battery."""

from collections.abc import Callable
from typing import Any

import psutil


def _read() -> Any:
    return psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None


def on_battery(read: Callable[[], Any] = _read) -> bool | None:
    """Return whether it does; False without a battery, None if it is unknown."""
    try:
        battery = read()
    except (OSError, ValueError, RuntimeError, psutil.Error):
        return None
    if battery is None:
        return False
    return None if battery.power_plugged is None else not battery.power_plugged
