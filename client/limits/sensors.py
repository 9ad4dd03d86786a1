"""Power and temperature of NVIDIA GPUs, as their driver tells; nothing where there is no driver.

A card or a driver may lack any of the numbers. State: none; the library is open during a reading.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from client.limits.power import handle_of

_OF_THE_CHIP: Final = 0  # NVML_TEMPERATURE_GPU
_SLOWS_DOWN: Final = 1  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN


@dataclass(frozen=True, slots=True)
class Reading:
    """What the driver tells of a GPU; None: it does not tell.

    Fields:
        device: torch's name.
        power_w, limit_w: drawn now, and at most.
        temperature_c: of the chip.
        slows_at_c: from which on the card slows itself down.
        used_bytes: of its memory, by all processes.
    """

    device: str
    power_w: float | None = None
    limit_w: float | None = None
    temperature_c: int | None = None
    slows_at_c: int | None = None
    used_bytes: int | None = None


def read_sensors(
    devices: Iterable[str], nvml: Any = None, environ: Mapping[str, str] = os.environ
) -> list[Reading]:
    """Return the readings of the devices that are NVIDIA GPUs; empty without their driver.

    Args:
        devices: torch's names.
        nvml: the module ``pynvml`` or a replacement; None: that module.
        environ: may renumber GPUs.
    """
    names = [name for name in devices if name.startswith(("cuda", "auto"))]
    if not names:
        return []
    nvml = nvml or _nvidia()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        found = (_read(nvml, name, environ) for name in names)
        return [reading for reading in found if reading is not None]
    finally:
        nvml.nvmlShutdown()


def _nvidia() -> Any:
    import pynvml

    return pynvml


def _read(nvml: Any, device: str, environ: Mapping[str, str]) -> Reading | None:
    def told(ask: Callable[..., Any], *more: int) -> Any:
        try:
            return ask(card, *more)
        except nvml.NVMLError:
            return None

    try:
        card = handle_of(nvml, device, environ)
    except nvml.NVMLError:
        return None
    memory = told(nvml.nvmlDeviceGetMemoryInfo)
    return Reading(
        device=device,
        power_w=_watts(told(nvml.nvmlDeviceGetPowerUsage)),
        limit_w=_watts(told(nvml.nvmlDeviceGetPowerManagementLimit)),
        temperature_c=told(nvml.nvmlDeviceGetTemperature, _OF_THE_CHIP),
        slows_at_c=told(nvml.nvmlDeviceGetTemperatureThreshold, _SLOWS_DOWN),
        used_bytes=None if memory is None else int(memory.used),
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
