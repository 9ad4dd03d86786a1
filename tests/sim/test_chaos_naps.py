"""A replica of a run's only stage sleeps often and soon wakes, as a laptop does.

Without ``Quorum.needs`` each of three (seed 23) sets another one aside and is left with one
elector, so that all of them stand still for more than a minute.
"""

from __future__ import annotations

import math

import pytest

from tests.support.cases import usual
from tests.support.naps import watched

STANDS_S = 60.0
"""The longest time without a new version: others sleep as soon as one is awake."""
OUT_S = 130.0
"""The longest time without one of two: it is set aside for a minute, the next time for two."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "replicas", "naps", "out_s"),
    usual(1, [(14, 2, 30, OUT_S), (23, 3, 60, math.inf), (10, 2, 60, OUT_S), (14, 2, 60, OUT_S)]),
)
def test_who_sleeps_often_is_soon_back_and_nobody_stands_still(
    seed: int, replicas: int, naps: int, out_s: float
) -> None:
    newest, risen_at, together_at, now = 0, 0.0, 0.0, 0.0
    for seen in watched(seed, replicas, naps):
        now = seen.now
        if seen.newest > newest:
            newest, risen_at = seen.newest, now
        if seen.all_here:
            together_at = now
        assert now - risen_at < STANDS_S, f"seed {seed}: no version after {newest}"
        assert now - together_at < out_s, f"seed {seed}: one is out since {together_at}"
    assert newest > 0.5 * now, "steps of about half a second"
