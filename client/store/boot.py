"""Tells the boots of this machine apart."""

import ctypes
import sys
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> str:
    """Return the id of this boot of the machine; empty where the system has none."""
    if sys.platform == "darwin":
        return _boot_of_macos()
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _boot_of_macos() -> str:
    found = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(found))
    read = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if read is None or read(b"kern.bootsessionuuid", found, ctypes.byref(size), None, 0):
        return ""
    return found.value.decode()
