"""Curves, bars and sparklines."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from client.views.plot import bar, curve, progress, spark
from client.views.span import Box, line_width, plain
from client.views.words import clock, count, duration, listed, share, size

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


def test_quantities_are_short() -> None:
    assert [count(n) for n in (0, 7, 2000, 12_345, 123_456, 4_560_000, 2.5)] == [
        "0", "7", "2000", "12345", "123k", "4.56M", "2.50"
    ]  # fmt: skip
    assert count(12_345.6) == "12.3k", "a rate is no number of steps"
    assert [size(n) for n in (0, 999, 12_345, 4.56e9)] == ["0 B", "999 B", "12.3 kB", "4.56 GB"]
    assert [duration(s) for s in (0.84, 45, 185, 7800, 273_600)] == [
        "0.8 s", "45 s", "3 min 05 s", "2 h 10 min", "3 d 4 h"
    ]  # fmt: skip
    assert [share(part) for part in (0.042, 0.42, 0.9994, 0.9996, 1.0)] == [
        "4.2 %", "42.0 %", "99.9 %", "100 %", "100 %"
    ]  # fmt: skip
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert clock(0) == "00:00:00"
    assert clock(-1e30) == "00:00:00"
    assert len(clock(1e30)) == 8
