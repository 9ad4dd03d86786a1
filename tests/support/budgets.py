"""What every test keeps to: five seconds of the processor, and no skip that nobody expects.

Processor seconds, not the clock's: on a busy machine a test waits. It is dearer there, too, because
caches and cores are shared: only four times its seconds fail it. Fixtures are not held against a
test, because the tests of a module share them.
"""

import os
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

MOST_S = 5.0
"""Of a test that is marked neither ``slow`` nor ``long``, with the processes that it starts; on a
core that nothing else uses."""
SHARED = 4.0
"""How much dearer a test may seem where others use the machine, too."""
MUST_RUN = "TESTS_MUST_RUN"
"""The variable that makes unexpected skips fail, as in ``.ci/run``."""
EXPECTED_SKIPS = (
    "root may write anywhere",
    "root's notice may name a process of root",
    "only root can become",
    "needs root",
    "run it as root",
    "no namespaces here",
    "/dev/net/tun is not there or may not be used",
    "newer versions of torch have it",
    "peft is not installed",
    "TEST_LLAMA_CPP_PYTHON names no interpreter",
    "this machine has no IPv6",
    "npm's registry cannot be reached",
)
"""Parts of reasons that no package of the system mends: who runs the tests and what a container may
do, the version of torch, large libraries that tests only compare with, the network."""
SHOWN = 40

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

since = pytest.StashKey[float]()


def cpu_seconds() -> float:
    """Return seconds of this process and its descendants, those that have ended included.

    Elsewhere than on Linux, descendants count once they have ended.
    """
    ended = os.times()
    living = sum(_seconds(pid) for pid in _below(os.getpid()))
    return sum(ended[:4]) + living


def _below(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_below(child)]
    return found


def _seconds(pid: int) -> float:
    """Return what a process used, and those that it has waited for."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = said.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_S


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[since] = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the seconds of each phase; fail a test that took too many, or skips unexpectedly."""
    report = yield
    now = cpu_seconds()
    used = now - item.stash[since]
    item.stash[since] = now
    report.cpu_s = used
    marked = {mark.name for mark in item.iter_markers()} & {"slow", "long"}
    dear = report.when == "call" and used > SHARED * MOST_S
    if report.passed and dear and not marked:
        report.outcome = "failed"
        report.longrepr = (
            f"{used:.1f} processor seconds, and {MOST_S:.0f} to {SHARED * MOST_S:.0f} may be: "
            "make it smaller, or mark it slow, or leave it to make long"
        )
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that skips unexpectedly."""
    report = yield
    refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip, unless its reason is expected or ``MUST_RUN`` is not set."""
    if not (report.skipped and os.environ.get(MUST_RUN)) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(part in reason for part in EXPECTED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"{MUST_RUN} is set, and this would skip. {reason}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what all tests took, and which took most."""
    used: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            used[getattr(report, "nodeid", "")] += getattr(report, "cpu_s", 0.0)
    terminalreporter.write_sep("=", f"{sum(used.values()):.0f} processor seconds")
    for name, seconds in used.most_common(SHOWN):
        if seconds > 1.0:
            terminalreporter.write_line(f"{seconds:6.1f} {name}")
