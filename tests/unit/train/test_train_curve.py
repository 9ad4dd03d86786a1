"""The loss curve and the credit that a node remembers: bounded, thinned evenly, kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from client.store.credit import load_credit
from client.train.credit import Credit
from client.train.curve import Curve


@given(steps=st.integers(0, 3000), asked=st.integers(1, 500))
def test_a_curve_is_bounded_ordered_and_ends_with_the_newest(steps: int, asked: int) -> None:
    curve = Curve(most=64)
    for step in range(steps):
        curve.note(step, float(step), 1.0, 2.0)
    assert len(curve._points) <= 64
    found = [point.step for point in curve.points(asked)]
    assert len(found) <= asked
    assert found == sorted(set(found))
    assert found[-1:] == ([steps - 1] if steps else [])


def test_few_steps_are_all_there_and_many_are_even() -> None:
    curve = Curve(most=64)
    for step in range(40):
        curve.note(step, 0.0, 1.0, 2.0)
    assert [point.step for point in curve.points(500)] == list(range(40))
    for step in range(40, 1000):
        curve.note(step, 0.0, 1.0, 2.0)
    found = [point.step for point in curve.points(500)][:-1]
    assert {b - a for a, b in itertools.pairwise(found)} == {found[1]}


def test_credit_adds_up_over_sessions(tmp_path: Path) -> None:
    path = tmp_path / "credit" / "x.json"
    tally = SimpleNamespace(counted=3)
    first = Credit(path, tally, 10, lambda: 500)  # type: ignore[arg-type]
    first._save()
    second = Credit(path, SimpleNamespace(counted=2), 10, lambda: 50)  # type: ignore[arg-type]
    now = second.view()
    assert (now.microbatches, now.tokens, now.sent_bytes) == (5, 50, 550)
    assert now.since == first.view().since > 0
    path.write_bytes(b"no")
    assert load_credit(path) is None
