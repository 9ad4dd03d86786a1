"""All tests, in lanes side by side: ``make test``; with ``--check`` a quick part, ``make check``.

Tests of real processes, sockets and screens have deadlines and often wait: a lane runs its tests
one after the other, and what one lane leaves idle another one uses. The simulations only compute,
on virtual time, and it is of no matter when: they have the lowest priority, take what the others
leave of the cores, and all cores once these are done. Home networks come first: routers forget, and
peers dial each other at one moment, so other work would be taken for a fault of theirs. With other
arguments it is pytest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q")
USUAL = ("-m", "not long", "--durations=12")
"""Without what ``make long`` runs; and a run says what takes most of its time."""
IDLE_PRIORITY = 19


@dataclass(frozen=True)
class Lane:
    """Tests that run one after the other, beside those of other lanes."""

    name: str
    tests: tuple[str, ...]
    """Folders, files, and tests of a file."""
    without: tuple[str, ...] = ()
    gives_way: bool = False
    """Whether it has the lowest priority."""
    first: bool = False
    """Whether only lanes that give way run beside it: the others start once it is done."""

    @property
    def command(self) -> list[str]:
        """Its command; only one process may write pytest's cache."""
        ignored = (f"--ignore={path}" for path in self.without)
        return [*PYTEST, *USUAL, "-p", "no:cacheprovider", *ignored, *self.tests]


DAEMON = "tests/e2e/test_e2e_daemon.py"
"""Beside the first of the other volunteers: those with most to wait for make the longest lane."""
SWEEPS = ("tests/sim/test_chaos_liar.py", "tests/sim/test_chaos_seeds.py")
"""They use all cores by themselves."""
OBSTACLES = (
    "tests/sim/test_chaos_audits.py",
    "tests/sim/test_chaos_mutants.py",
    "tests/sim/test_sim_obstruction.py",
    "tests/sim/test_sim_stragglers.py",
)
"""About as much to compute as the sweeps, as matching, as exactness and as the other simulations:
so all end together."""
EXACTNESS = (
    "tests/sim/test_sim_amendments.py",
    "tests/sim/test_sim_evaluation.py",
    "tests/sim/test_sim_exactness.py",
)
"""Swarms of real tensors beside the reference trainer."""
MATCHING = tuple(
    str(path.relative_to(REPOSITORY))
    for path in sorted((REPOSITORY / "tests" / "sim").glob("test_[em]*.py"))
)
DEMO = "tests/e2e/test_e2e_demo.py::test_a_short_demo_survives_a_kill_and_leaves_its_results"
WORKERS = ("tests/unit/client/compute", "tests/unit/client/train")
ALL = (
    Lane("volunteers", ("tests/e2e",), (DAEMON,)),
    Lane("home networks", ("tests/netlab",), first=True),
    Lane("the rest", (DAEMON, "tests/unit", "tests/net", "tests/ui", "tests/packaging")),
    Lane(
        "simulations", ("tests/sim",), (*EXACTNESS, *MATCHING, *OBSTACLES, *SWEEPS), gives_way=True
    ),
    Lane("exactness", EXACTNESS, gives_way=True),
    Lane("obstacles", OBSTACLES, gives_way=True),
    Lane("matching", MATCHING, gives_way=True),
    Lane("sweeps of seeds", SWEEPS, gives_way=True),
)
CHECK = (
    Lane("unit", ("tests/unit",), WORKERS),
    Lane("workers", WORKERS),
    Lane("demo", (DEMO,)),
)


def main(arguments: list[str]) -> int:
    if arguments and arguments != ["--check"]:
        return subprocess.run([*PYTEST, *arguments], cwd=REPOSITORY, check=False).returncode
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    lanes = CHECK if arguments else ALL
    codes: list[int] = []
    with ExitStack() as stack:
        beside = [lane for lane in lanes if lane.first or lane.gives_way]
        running = [(lane, *stack.enter_context(started(lane))) for lane in beside]
        firsts = [one for one in running if one[0].first]
        codes += [told(*one) for one in firsts]
        rest = [lane for lane in lanes if lane not in beside]
        running += [(lane, *stack.enter_context(started(lane))) for lane in rest]
        codes += [told(*one) for one in running if one not in firsts]
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
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            if lane.gives_way:
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
