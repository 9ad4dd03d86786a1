"""Curves, bars and sparklines."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.views import words
from client.views.plot import bar, curve, progress, spark
from client.views.span import Box, line_width, plain

BOX = Box(40, 10)


def test_many_points_are_faint_behind_a_smoothed_line() -> None:
    """1,400 steps of a noisy loss were one solid block."""
    noise = random.Random(1)
    points = [(float(x), 2.0 + 2 * math.exp(-x / 300) + noise.gauss(0, 0.15)) for x in range(1400)]
    lines = curve(points, Box(70, 12))
    rows = [[span for span in found if span.tone == "accent"] for found in lines]
    strong = sum(not cell.isspace() for row in rows for span in row for cell in span.text)
    faint = "".join(s.text for found in lines[:-2] for s in found[2:] if s.tone == "faint")
    assert 60 <= strong <= 90, "one line, about one cell high"
    assert len(faint.replace(" ", "")) > 60, "and what it is the mean of"


def test_one_wild_value_does_not_flatten_the_rest() -> None:
    points = [(float(x), 3.0 + x % 2 / 10) for x in range(100)]
    points[40] = (40.0, 1e9)
    top = plain(curve(points, BOX)).splitlines()[0]
    assert float(top.split("│")[0]) < 4


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(allow_nan=True)), max_size=60),
    st.integers(16, 90),
    st.integers(4, 30),
)
def test_no_curve_leaves_its_box(
    points: list[tuple[float, float]], width: int, height: int
) -> None:
    lines = curve(sorted(points, key=lambda point: point[0]), Box(width, height))
    assert len(lines) in (0, height)
    assert all(line_width(line) <= width for line in lines)


def test_bars_and_sparklines() -> None:
    assert bar(0.5, 4) == "██  "
    assert bar(7.0, 3) == "███"
    assert bar(math.nan, 3) == "   "
    assert spark([0, 1, 2, 4], 3) == "▃▅█"
    assert spark([], 5) == ""
    assert spark([0.0, math.inf], 5) == "▁▁"
    assert plain([progress(0.5, 4)]) == "━━──"


SPELLED: dict[Callable[..., str], dict[Any, str]] = {
    words.count: {
        0: "0", 7: "7", 2000: "2000", 99_999: "99999", 100_000: "100k", 4_560_000: "4.56M",
        2.5: "2.50", 8.0: "8", 9.994: "9.99", 9.996: "10.0", 99.94: "99.9", 99.96: "100",
        999.4: "999", 999.6: "1.00k", 12_345.6: "12.3k", 3e15: "3000T", -12.0: "-12", 1e18: "?",
    },
    words.size: {
        0: "0 B", 999: "999 B", 999.6: "1.00 kB", 12_345: "12.3 kB", 4.56e9: "4.56 GB",
        9e17: "900 PB", 1e18: "?",
    },
    words.per_s: {0: "0 Mbit/s", 15_000: "0.12 Mbit/s", 12.25e6: "98.0 Mbit/s",
                  124.9e6: "999 Mbit/s", 125e6: "1.00 Gbit/s", math.inf: "?"},
    words.rate: {0.5: "0.50", 12.34: "12.3", 999.9: "1000", 1234.0: "1.23k", 1e18: "?"},
    words.share: {0.042: "4.2 %", 0.42: "42.0 %", 0.9994: "99.9 %", 0.9996: "100 %", 1.0: "100 %"},
    words.duration: {
        -1: "0.0 s", 0.84: "0.8 s", 9.94: "9.9 s", 9.96: "10 s", 45: "45 s", 59.6: "1 min 00 s",
        185: "3 min 05 s", 3599: "59 min 59 s", 7800: "2 h 10 min", 86_399: "23 h 59 min",
        273_600: "3 d 4 h", math.nan: "?",
    },
    words.about: {45: "45 s", 185: "3 min", 7800: "2 h 10 min"},
    words.clock: {0: "00:00:00", -1e30: "00:00:00", 45_296.0: "12:34:56", math.nan: "00:00:00"},
    words.date: {0: "1970-01-01 00:00", 45_296.0: "1970-01-01 12:34", 1e30: "3000-01-01 00:00"},
    words.state_word: {"training": ("TRAINING", "good"), "x\ny": ("X Y", "plain")},
    words.listed: {(): "", ("a",): "a", ("a", "b"): "a and b", ("a", "b", "c"): "a, b and c"},
}  # fmt: skip


@pytest.mark.parametrize("function", SPELLED)
def test_quantities_are_short(function: Callable[..., str]) -> None:
    assert {value: function(value) for value in SPELLED[function]} == SPELLED[function]
