"""The cores that a process may use: control groups, topology, affinity."""

import os
import sys
from pathlib import Path

import pytest

from client.errors import ExitCode, UserError
from client.limits.cores import Cores, check_threads, find_cores, find_quota, physical_cores
from tests.support.cli_process import apart


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/user.slice/job\n")
    _write(tmp_path / "cg/cpu.max", "max 100000\n")
    _write(tmp_path / "cg/user.slice/cpu.max", "150000 100000\n")
    _write(tmp_path / "cg/user.slice/job/cpu.max", "400000 100000\n")
    found = find_quota(own, tmp_path / "cg")
    assert found == 1.5


@pytest.mark.parametrize(
    "text", ["max 100000\n", "", "0 100000\n", "-1 100000\n", "1 0\n", "x y\n"]
)
def test_what_is_no_limit_is_none(tmp_path: Path, text: str) -> None:
    own = tmp_path / "own"
    own.write_text("0::/../../etc\nnonsense\n")
    _write(tmp_path / "cg/cpu.max", text)
    assert find_quota(own, tmp_path / "cg") is None


def test_threads_of_one_core_are_one_core(tmp_path: Path) -> None:
    for cpu in range(4):
        siblings = f"{cpu % 2},{cpu % 2 + 2}\n"
        _write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", siblings)
    assert physical_cores(frozenset(range(4)), tmp_path) == 2
    assert physical_cores(frozenset({0, 2}), tmp_path) == 1
    assert physical_cores(frozenset({7, 8}), tmp_path) == 2, "the kernel does not say"


@pytest.mark.parametrize(
    ("physical", "quota", "usable", "most"),
    [(4, None, 4, 8), (4, 2.5, 2, 3), (4, 0.5, 1, 1), (4, 64.0, 4, 8)],
)
def test_a_quota_bounds_threads(physical: int, quota: float | None, usable: int, most: int) -> None:
    cores = Cores(frozenset(range(8)), physical, quota)
    assert (cores.usable, cores.most_threads) == (usable, most)


def test_without_affinity_every_core_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert find_cores().cpus == frozenset(range(os.cpu_count() or 1))
    assert find_cores().quota is None


def test_affinity_is_respected() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("the kernel has no affinity")
    first = min(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, {{{first}}})\n"
        "from client.limits.cores import find_cores\n"
        "print(sorted(find_cores().cpus), find_cores().usable)"
    )
    done = apart(sys.executable, "-c", program)
    assert done.stdout.split() == [f"[{first}]", "1"]


def test_more_threads_than_cores_are_refused_with_their_number() -> None:
    most = find_cores().most_threads
    check_threads(0)
    check_threads(most)
    with pytest.raises(UserError) as caught:
        check_threads(most + 1)
    assert f"{most} core" in str(caught.value)
    assert f"--threads {most}" in caught.value.next_step
    assert caught.value.exit_code == ExitCode.CONFIG
