"""The machine of a figure."""

import os
import platform
import subprocess
from pathlib import Path


def cpu() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


def this_machine() -> str:
    """Return processor, cores and kernel in words."""
    return f"{cpu()}, {os.cpu_count() or 0} cores, {platform.system()} {platform.release()}"


def commit() -> str:
    """Return the short commit of this code."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
