"""The GPU's power cap, through NVML: set while the node runs, restored when it ends.

The driver lets only root change it. Without permission the owner is told what to do instead, and
nothing changes. State: the previous cap.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from client.errors import UserError


@dataclass(frozen=True, slots=True)
class Capped:
    """A cap that we have set, with the previous one in milliwatts."""

    handle: Any
    before_mw: int


def handle_of(nvml: Any, device: str, environ: Mapping[str, str]) -> Any:
    """Return the driver's handle of the GPU with torch's name; ``CUDA_VISIBLE_DEVICES`` renumbers
    GPUs. ``nvml`` is the module ``pynvml``, initialised; its errors are raised."""
    _, _, number = device.partition(":")
    index = int(number) if number.isdecimal() else 0
    visible = [v.strip() for v in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    name = visible[index] if index < len(visible) and visible[index] else str(index)
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


class PowerCap:
    """One GPU's cap; ``nvml`` is the module ``pynvml`` or a replacement."""

    def __init__(self, nvml: Any, environ: Mapping[str, str] = os.environ) -> None:
        self._nvml, self._environ = nvml, environ
        self._capped: Capped | None = None

    def set(self, watts: int, device: str) -> str:
        """Cap the GPU that computes; return the result in words.

        Raises:
            UserError: there is no such GPU, or the driver refuses.
        """
        with self._library(watts, device) as handle:
            before_mw = self._needed(watts, handle)
            if before_mw is None:
                return f"the GPU's power is capped at {watts} W or less already"
            self._nvml.nvmlDeviceSetPowerManagementLimit(handle, 1000 * watts)
            self._capped = Capped(handle, before_mw)
            return f"the GPU's power is capped at {watts} W (before: {before_mw // 1000} W)"

    def check(self, watts: int, device: str) -> str:
        """As ``set`` without a change; it cannot detect missing permission."""
        with self._library(watts, device) as handle:
            before_mw = self._needed(watts, handle)
            if before_mw is None:
                return f"capped at {watts} W or less already"
            return f"{watts} W is possible (now: {before_mw // 1000} W)"

    def restore(self) -> None:
        """Restore the previous cap, if the driver permits."""
        capped, self._capped = self._capped, None
        if capped is None:
            return
        nvml = self._nvml
        try:
            nvml.nvmlDeviceSetPowerManagementLimit(capped.handle, capped.before_mw)
        except nvml.NVMLError:
            return  # the machine's owner can see and set it: nvidia-smi -pl
        finally:
            nvml.nvmlShutdown()

    @contextmanager
    def _library(self, watts: int, device: str) -> Iterator[Any]:
        """Yield the GPU's handle; the library stays open while a cap of ours is set."""
        if device.startswith("cpu"):
            raise UserError("a power limit is for a GPU, and this node computes on the CPU")
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise UserError(f"the power limit cannot be set: {error}") from error
        try:
            yield handle_of(nvml, device, self._environ)
        except nvml.NVMLError as error:
            raise self._explain(error, watts) from error
        finally:
            if self._capped is None:
                nvml.nvmlShutdown()

    def _needed(self, watts: int, handle: Any) -> int | None:
        """Return the present cap in milliwatts if it must be lowered, else None.

        Raises:
            UserError: the GPU does not support this cap.
        """
        nvml = self._nvml
        before_mw = int(nvml.nvmlDeviceGetPowerManagementLimit(handle))
        if before_mw <= 1000 * watts:
            return None
        least, most = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        if not least <= 1000 * watts <= most:
            choice = f"choose {-(-least // 1000)} to {most // 1000} W"
            raise UserError(f"{watts} W is not a power limit of this GPU", choice)
        return before_mw

    def _explain(self, error: Exception, watts: int) -> UserError:
        if isinstance(error, self._nvml.NVMLError_NoPermission):
            problem = "the driver lets only root change the GPU's power limit"
            return UserError(problem, f"run: sudo nvidia-smi -pl {watts}")
        if isinstance(error, self._nvml.NVMLError_NotSupported):
            return UserError("this GPU's power limit cannot be changed")
        return UserError(f"the power limit cannot be set: {error}")
