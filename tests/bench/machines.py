"""The machine of a figure: figures of two machines have no common median."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar


class Measured(Protocol):
    """A line of results."""

    @property
    def machine(self) -> str:
        """As ``this_machine`` says it; empty in lines that do not say where they come from."""


M = TypeVar("M", bound=Measured)


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


def of_newest(results: Sequence[M]) -> list[M]:
    """Return the results of the machine that the last one comes from."""
    return [result for result in results if result.machine == results[-1].machine]


def left_out(results: Sequence[Measured], shown: Sequence[Measured]) -> str:
    """Say how many results are not shown; empty if all are."""
    others = len(results) - len(shown)
    return f" Not shown: {others} runs of other machines." if others else ""
