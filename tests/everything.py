"""All tests: ``make test``; ``--check`` and ``--long`` are ``make check`` and ``make long``.

Tests that only compute run on all cores, each core's one after the other, at the lowest priority:
it is of no matter when. Tests of real processes, sockets, terminals and networks have deadlines and
mostly wait: they run in two lanes beside these, and before them. With other arguments it is pytest.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q")
IDLE_PRIORITY = 19
UNCACHED = "PYTHONDONTWRITEBYTECODE"
"""Where it is set, each of some hundred processes compiles all that it imports."""


@dataclass(frozen=True)
class Lane:
    """Tests that run beside those of other lanes."""

    name: str
    tests: tuple[str, ...]
    """Folders, files, and tests of a file."""
    without: tuple[str, ...] = ()
    marked: str = "not long"
    computes: bool = False
    """Whether it takes all cores, at the lowest priority; otherwise one after the other."""

    @property
    def command(self) -> list[str]:
        """Its command; only one process may write pytest's cache."""
        ignored = [f"--ignore={path}" for path in self.without]
        copies = (os.cpu_count() or 1) + 2  # two more, for some tests wait for a moment
        cores = ["-p", "tests.support.cores", "--cores", str(copies)]
        several = cores if self.computes else []
        options = ["-m", self.marked, "-p", "no:cacheprovider", *several, *ignored]
        return [*PYTEST, *options, *self.tests]


VOLUNTEERS = ("tests/e2e",)
NETWORKS = ("tests/net", "tests/netlab")
DEMO = "tests/e2e/test_e2e_demo.py::test_a_short_demo_survives_a_kill_and_leaves_its_results"
ALL = (
    Lane("volunteers", VOLUNTEERS),
    Lane("networks", NETWORKS),
    Lane("computing", ("tests",), (*VOLUNTEERS, *NETWORKS), computes=True),
)
SWARMS = tuple(
    str(path.relative_to(REPOSITORY))
    for path in sorted((REPOSITORY / "tests/unit").rglob("test_*.py"))
    if "tests.support.train_swarm" in path.read_text(encoding="utf-8")
)
"""Whole engines that train with torch: unit tests only by their place."""
LONG = tuple(replace(lane, marked="long") for lane in ALL)
CHECK = (
    Lane("demo", (DEMO,)),
    Lane("unit", ("tests/unit",), SWARMS, marked="not long and not slow", computes=True),
)


def main(arguments: list[str]) -> int:
    lanes = {(): ALL, ("--check",): CHECK, ("--long",): LONG}.get(tuple(arguments))
    if lanes is None:
        return subprocess.run([*PYTEST, *arguments], cwd=REPOSITORY, check=False).returncode
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with ExitStack() as stack:
        running = [(lane, *stack.enter_context(started(lane))) for lane in lanes]
        codes = [told(*one) for one in running]
    return next((code for code in codes if code), 0)


def told(lane: Lane, process: subprocess.Popen[str], said: IO[str]) -> int:
    """Wait for a lane, print what it said, and return its exit code."""
    code = process.wait()
    said.seek(0)
    print(f"\n{lane.name}: {' '.join(lane.tests)}\n{said.read()}", flush=True)
    return code


@contextmanager
def started(lane: Lane) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a lane; nothing of it is left at the end."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            lane.command,
            cwd=REPOSITORY,
            env={name: text for name, text in os.environ.items() if name != UNCACHED},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            if lane.computes:
                give_way(process.pid)
            yield process, said
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def give_way(pid: int) -> None:
    """Give a process, and those that it starts, the lowest priority.

    Linux weighs a session as a whole first, where it does so at all.
    """
    os.setpriority(os.PRIO_PROCESS, pid, IDLE_PRIORITY)
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(IDLE_PRIORITY))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
