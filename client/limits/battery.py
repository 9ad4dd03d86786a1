"""Detects whether this machine runs on battery."""

import psutil


def on_battery() -> bool | None:
    """Return whether it does; False without a battery, None if it is unknown."""
    try:
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    except (OSError, ValueError, RuntimeError, psutil.Error):
        return None
    if battery is None:
        return False
    return None if battery.power_plugged is None else not battery.power_plugged
