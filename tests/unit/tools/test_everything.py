"""The lanes of ``make test``: every test is in one of them."""

from collections import Counter
from pathlib import Path

from tests.everything import ALL, CHECK, REPOSITORY, SWARMS, Lane


def files(lane: Lane) -> list[Path]:
    """The test files that a lane runs."""
    return [path for name in lane.tests for path in within(name) if not left_out(path, lane)]


def within(name: str) -> list[Path]:
    path = REPOSITORY / name.partition("::")[0]
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def left_out(path: Path, lane: Lane) -> bool:
    return any(path.is_relative_to(REPOSITORY / name) for name in lane.without)


def test_every_test_is_in_one_lane() -> None:
    run = Counter(path for lane in ALL for path in files(lane))
    assert set(run) == {*(REPOSITORY / "tests").rglob("test_*.py")}
    assert set(run.values()) == {1}


def test_the_quick_check_runs_every_unit_test_once_but_whole_swarms() -> None:
    run = Counter(path for lane in CHECK for path in files(lane))
    unit = {*(REPOSITORY / "tests" / "unit").rglob("test_*.py")}
    assert SWARMS
    assert set(run) > unit - {REPOSITORY / name for name in SWARMS}
    assert set(run.values()) == {1}
