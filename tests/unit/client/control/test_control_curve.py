"""The loss curve that a node remembers: bounded, thinned evenly."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from client.control.curve import LossCurve
from client.control.updates import StepPoint


def at(step: int, loss: float = 1.0) -> StepPoint:
    return StepPoint(step, float(step), loss, 2.0)


@given(steps=st.integers(0, 3000), asked=st.integers(1, 500))
def test_a_curve_is_bounded_ordered_and_ends_with_the_newest(steps: int, asked: int) -> None:
    curve = LossCurve(most=64)
    for step in range(steps):
        curve.note(at(step, 1.0))
    assert len(curve._points) <= 65
    found = [point.step for point in curve.points(asked)]
    assert len(found) <= asked
    assert found == sorted(set(found))
    assert found[-1:] == ([steps - 1] if steps else [])


def steps(curve: LossCurve) -> list[int]:
    return [point.step for point in curve.points(500)]


@given(most=st.integers(4, 40), number=st.integers(1, 400))
def test_a_curve_that_is_taken_up_again_is_bounded_and_even(most: int, number: int) -> None:
    curve = LossCurve(most=most)
    for begin in range(0, number, 97):  # a new process now and then
        curve = LossCurve(curve.points(), most)
        for step in range(begin, min(begin + 97, number)):
            curve.note(at(step))
    *found, newest = steps(curve)
    assert len(found) <= most
    assert newest == number - 1
    assert len({b - a for a, b in itertools.pairwise(found)}) <= 1


def test_what_is_known_counts_beside_what_is_told_of_the_time_before() -> None:
    curve = LossCurve([at(5, 2.0)])
    curve.learn([at(3, 4.0), at(5, 99.0), at(4, math.inf)])
    assert [(p.step, p.loss) for p in curve.points()] == [(3, 4.0), (5, 2.0)]


def test_a_roll_back_cuts_off_what_is_done_again() -> None:
    curve = LossCurve()
    for step in range(30):
        curve.note(at(step, 1.0))
    curve.rolled_back(20)
    assert steps(curve) == list(range(20))
    curve.note(at(20, 9.0))
    assert steps(curve) == list(range(21))
    curve.note(at(18, 8.0))  # it was not told
    assert steps(curve) == list(range(19))
    assert curve.points(1)[0].loss == 8.0
