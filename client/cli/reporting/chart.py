"""A chart as inline SVG within HTML. The lines stretch with the page; the figures are HTML, so that
they stay readable on a phone. Colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from client.views.plot import ABSURD, Point, bounds, smooth, ticks

WIDE, HIGH = 1000, 400
"""Units of the drawing; it is stretched to the room there is."""
MANY = 60
"""With more points the line is smoothed, and the points lie behind it."""


def chart(
    points: Sequence[Point],
    label: str,
    marks: Iterable[float] = (),
    over: Sequence[Point] = (),
) -> str:
    """Return a chart of a curve; empty without two points that can be drawn.

    Args:
        points: (x, y) with x rising; absurd ones are left out.
        label: what it shows, for those who do not see it.
        marks: places on the x axis to point at.
        over: a second curve of the same measure, drawn over the first.
    """
    seen = _sensible(points)
    if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
        return ""
    left, right = seen[0][0], seen[-1][0]
    above = [(min(x, right), y) for x, y in _sensible(over) if x >= left]
    lowest, highest = bounds([y for _, y in [*seen, *above]])
    if min(y for _, y in seen) >= 0:
        lowest = max(0.0, lowest)
    figures = ticks((lowest, highest), 4)
    low, high = figures[0], figures[-1]

    def line(kind: str, shown: Sequence[Point]) -> str:
        spots = " ".join(
            f"{WIDE * (x - left) / (right - left):.1f},"
            f"{HIGH * (high - min(max(y, low), high)) / (high - low):.1f}"
            for x, y in shown
        )
        return f'<polyline class="{kind}" points="{spots}"/>'

    lines = [line("curve", seen)]
    if len(seen) > MANY:
        lines = [line("points", seen), line("curve", smooth(seen, high))]
    lines += [line("over", above)] if above else []
    rows = [(100 * (high - y) / (high - low), _figure(y, figures)) for y in figures]
    columns = [
        (100 * (x - left) / (right - left), f"{x:,.0f}")
        for x in ticks((left, right), 5)
        if left <= x <= right and x == int(x)
    ]
    grid = "".join(f'<path class="grid" d="M0 {HIGH * top / 100:.1f}H{WIDE}"/>' for top, _ in rows)
    pointed = "".join(
        f'<path class="mark" d="M{WIDE * (x - left) / (right - left):.1f} 0V{HIGH}"/>'
        for x in marks
        if left <= x <= right
    )
    return (
        f'<div class="plot" role="img" aria-label="{escape(label)}">'
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" aria-hidden="true">'
        f"{grid}{pointed}{''.join(lines)}</svg>"
        + "".join(f'<span class="y" style="top:{top:.1f}%">{text}</span>' for top, text in rows)
        + "".join(f'<span class="x" style="left:{x:.1f}%">{text}</span>' for x, text in columns)
        + "</div>"
    )


def _sensible(points: Iterable[Point]) -> list[Point]:
    return [(x, y) for x, y in points if abs(x) < ABSURD and abs(y) < ABSURD]


def _figure(value: float, figures: Sequence[float]) -> str:
    """Return a figure of an axis with as many digits as tell it from its neighbours."""
    step = figures[1] - figures[0]
    digits = next((n for n in range(6) if abs(round(step, n) - step) < 1e-9 * step), 6)
    return f"{value:,.{digits}f}"
