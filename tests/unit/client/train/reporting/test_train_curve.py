"""The loss curve that a node remembers: bounded, thinned evenly, kept."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.train.reporting.curve import Curve


@given(steps=st.integers(0, 3000), asked=st.integers(1, 500))
def test_a_curve_is_bounded_ordered_and_ends_with_the_newest(steps: int, asked: int) -> None:
    curve = Curve(most=64)
    for step in range(steps):
        curve.note(step, float(step), 1.0, 2.0)
    assert len(curve._points) <= 65
    found = [point.step for point in curve.points(asked)]
    assert len(found) <= asked
    assert found == sorted(set(found))
    assert found[-1:] == ([steps - 1] if steps else [])


def kept(path: Path, most: int = 64) -> Curve:
    return Curve(most, path)


def steps(curve: Curve) -> list[int]:
    return [point.step for point in curve.points(500)]


def test_a_curve_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "curves" / "x.bin"
    first = kept(path)
    for step in range(50):
        first.note(step, 100.0 + step, 5.0 - step / 50, 7.0)
    first.save()
    again = kept(path)
    assert again.points(500) == first.points(500)
    again.note(50, 150.0, 3.9, 7.0)
    again.save()
    assert steps(kept(path)) == list(range(51))


@given(most=st.integers(4, 40), number=st.integers(1, 400))
def test_a_curve_on_disk_is_bounded_and_even(
    tmp_path_factory: pytest.TempPathFactory, most: int, number: int
) -> None:
    path = tmp_path_factory.mktemp("curve") / "x.bin"
    for begin in range(0, number, 97):  # a new process now and then
        curve = kept(path, most)
        for step in range(begin, min(begin + 97, number)):
            curve.note(step, 0.0, 1.0, 2.0)
        curve.save()
    *found, newest = steps(kept(path, most))
    assert len(found) <= most
    assert newest == number - 1
    assert len({b - a for a, b in itertools.pairwise(found)}) <= 1


def test_a_damaged_file_begins_a_new_curve(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\xff" * 100)
    assert steps(kept(path)) == []


def test_a_roll_back_cuts_off_what_is_done_again(tmp_path: Path) -> None:
    curve = Curve()
    for step in range(30):
        curve.note(step, 0.0, 1.0, 2.0)
    curve.rolled_back(20)
    assert steps(curve) == list(range(20))
    curve.note(20, 0.0, 9.0, 2.0)
    assert steps(curve) == list(range(21))
    curve.note(18, 0.0, 8.0, 2.0)  # it was not told
    assert steps(curve) == list(range(19))
    assert curve.points(1)[0].loss == 8.0


def test_a_disk_that_does_not_take_it_leaves_the_curve_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    curve = kept(tmp_path / "file" / "x.bin")
    curve.note(0, 0.0, 1.0, 2.0)
    curve.save()
    assert steps(curve) == [0]
