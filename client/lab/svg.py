"""A line chart as SVG text: axes, round tick marks, named curves, labelled events.

Pure: numbers in, text out. Enough for a loss plot, without a plotting library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEGEND = 860, 460, 180
LEFT, RIGHT, TOP, BOTTOM = 76, 28, 62, 62
INK, MUTED, GRID, EVENT = "#1f2933", "#616e7c", "#e4e7eb", "#dc2626"
CURVES = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#db2777", "#0891b2", "#65a30d", "#475569")
DASHES = ("", "7 4", "2 3")
"""Colours are used again with the next dash."""


@dataclass(frozen=True)
class Event:
    """A moment worth marking with a dashed line."""

    x: float
    label: str


@dataclass(frozen=True)
class Curve:
    """A line through points (x, y); its name stands in the legend, if it has one."""

    points: Sequence[tuple[float, float]]
    name: str = ""


@dataclass(frozen=True)
class Labels:
    """Title and labels of a chart."""

    title: str
    subtitle: str
    x: str
    y: str


@dataclass(frozen=True)
class Axis:
    """Maps [low, high] to pixels; ``pixel_low`` may lie below or right of ``pixel_high``."""

    low: float
    high: float
    pixel_low: float
    pixel_high: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.pixel_low + share * (self.pixel_high - self.pixel_low)


def curves_chart(curves: Sequence[Curve], labels: Labels, *, events: Sequence[Event] = ()) -> str:
    """Return the SVG of some curves; points that are not finite are left out."""
    lines = [_finite(curve.points) for curve in curves]
    x_ticks = ticks([x for line in lines for x, _ in line] + [event.x for event in events])
    y_ticks = ticks([y for line in lines for _, y in line])
    x_axis = Axis(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    y_axis = Axis(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    named = [(index, curve.name) for index, curve in enumerate(curves) if curve.name]
    body = [
        _head(WIDTH + (LEGEND if named else 0)),
        _text(LEFT, 28, labels.title, size=17, weight=600),
        _text(LEFT, 47, labels.subtitle, size=12, fill=MUTED),
        *_grid(x_axis, x_ticks, y_axis, y_ticks),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, labels.x, anchor="middle"),
        _turned(20, (TOP + HEIGHT - BOTTOM) / 2, labels.y),
        *(part for event in events for part in _event(event, x_axis)),
        *(_curve([(x_axis(x), y_axis(y)) for x, y in line], i) for i, line in enumerate(lines)),
        *(part for index, name in named for part in _legend(name, index)),
    ]
    return "\n".join((*body, "</svg>", ""))


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _grid(x_axis: Axis, xs: list[float], y_axis: Axis, ys: list[float]) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    lines = [_line(LEFT, y_axis(y), right, y_axis(y), GRID) for y in ys]
    lines.append(_line(LEFT, bottom, right, bottom, MUTED))
    labels = [_text(LEFT - 9, y_axis(y) + 4, f"{y:g}", fill=MUTED, anchor="end") for y in ys]
    labels += [_text(x_axis(x), bottom + 20, f"{x:g}", fill=MUTED, anchor="middle") for x in xs]
    return lines + labels


def _event(event: Event, x_axis: Axis) -> list[str]:
    x = x_axis(event.x)
    on_left = x > WIDTH * 0.7
    return [
        _line(x, TOP, x, HEIGHT - BOTTOM, EVENT, dash="4 4"),
        _text(
            x - 6 if on_left else x + 6,
            TOP + 14,
            event.label,
            fill=EVENT,
            size=12,
            anchor="end" if on_left else "start",
        ),
    ]


def _curve(pixels: list[tuple[float, float]], index: int) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    colour, dash = _look(index)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-linejoin="round"{dashed}/>'
    )


def _look(index: int) -> tuple[str, str]:
    """Return colour and dash of the index-th curve."""
    return CURVES[index % len(CURVES)], DASHES[index // len(CURVES) % len(DASHES)]


def _legend(name: str, index: int) -> list[str]:
    """Return a line of the legend, right of the plot."""
    x, y = WIDTH - RIGHT + 18, TOP + 10 + 18 * index
    colour, dash = _look(index)
    return [
        _line(x, y, x + 24, y, colour, dash=dash, thick=2),
        _text(x + 31, y + 4, name, size=12),
    ]


def _head(width: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
        f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13">\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>'
    )


def _line(
    x1: float, y1: float, x2: float, y2: float, stroke: str, *, dash: str = "", thick: int = 1
) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-width="{thick}"{dashed}/>'
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    fill: str = INK,
    size: int = 13,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def _turned(x: float, y: float, words: str) -> str:
    return (
        f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)" fill="{INK}" '
        f'text-anchor="middle">{escape(words)}</text>'
    )


def ticks(values: Sequence[float], wanted: int = 6) -> list[float]:
    """Return at least two round numbers, evenly spaced, that enclose ``values``."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]
