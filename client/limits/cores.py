"""The cores that this process may use: affinity, topology and control group.

Reads the kernel's files at each call. No state.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from client.errors import ExitCode, UserError
from client.quantities import plural

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")
CPUS: Final = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Cores:
    """The processors that this process may use."""

    cpus: frozenset[int]
    """Logical processors, by the kernel's numbers."""
    physical: int
    """Physical cores of ``cpus``; two threads of one core are hardly faster than one."""
    quota: float | None = None
    """Processor time that the control group may take, in cores; None: all."""

    @property
    def usable(self) -> int:
        """Threads that can compute at full speed at once; at least 1."""
        return min(self.physical, max(1, math.floor(self.quota) if self.quota else 2**16))

    @property
    def most_threads(self) -> int:
        """The most threads that can run at once."""
        quota = math.ceil(self.quota) if self.quota else len(self.cpus)
        return max(1, min(len(self.cpus), quota))


def find_cores() -> Cores:
    """Return the processors that this process may use now."""
    if not hasattr(os, "sched_getaffinity"):  # the kernel of macOS places threads as it likes
        cpus = frozenset(range(os.cpu_count() or 1))
        return Cores(cpus, psutil.cpu_count(logical=False) or len(cpus))
    cpus = frozenset(os.sched_getaffinity(0))
    return Cores(cpus, physical_cores(cpus), find_quota())


def physical_cores(cpus: frozenset[int], folder: Path = CPUS) -> int:
    """Return the number of cores of these processors; one each if the kernel does not say."""
    return len({_siblings(folder / f"cpu{cpu}" / "topology") or str(cpu) for cpu in cpus})


def find_quota(own: Path = OWN_CGROUPS, mounts: Path = CGROUPS) -> float | None:
    """Return the tightest limit of our control groups and their ancestors, in cores; None if there
    is none.

    Groups of version 2 are read, with all visible ancestors.
    """
    found = (_cores_of(folder) for folder in control_groups(own, mounts))
    return min((cores for cores in found if cores is not None), default=None)


def check_threads(threads: int) -> None:
    """Refuse a number of threads that cannot run at once here; 0 is always accepted.

    Raises:
        UserError: too many; names the number of cores.
    """
    most = find_cores().most_threads
    if threads > most:
        raise UserError(
            f"{threads} threads are more than the {plural(most, 'core')} that may be used here",
            f"use at most --threads {most}, or leave it out",
            ExitCode.CONFIG,
        )


def control_groups(own: Path = OWN_CGROUPS, mounts: Path = CGROUPS) -> Iterator[Path]:
    """Yield the folders of this process's control group (version 2) and of all above it."""
    for line in _read(own).splitlines()[:64]:
        if line.startswith("0::"):
            names = line.removeprefix("0::").split("/")
            parts = [name for name in names if name not in ("", "..")]
            for length in range(len(parts), -1, -1):
                yield mounts.joinpath(*parts[:length])


def _cores_of(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or not there
        return None
    return cores if cores > 0 else None


def _siblings(folder: Path) -> str:
    return _read(folder / "core_cpus_list") or _read(folder / "thread_siblings_list")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
