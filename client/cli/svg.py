"""A line chart as SVG text: axes, round tick marks, one curve, labelled events.

Pure: numbers in, text out. Enough for a loss plot, without a plotting library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 76, 28, 62, 62
INK, MUTED, GRID, CURVE, EVENT = "#1f2933", "#616e7c", "#e4e7eb", "#2563eb", "#dc2626"

_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
    f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13">\n'
    f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
)


@dataclass(frozen=True)
class Event:
    """A moment worth marking with a dashed line."""

    x: float
    label: str


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


def line_chart(
    points: Sequence[tuple[float, float]],
    *,
    title: str,
    subtitle: str,
    x_label: str,
    y_label: str,
    events: Sequence[Event] = (),
) -> str:
    """Return the SVG of one curve; points that are not finite are left out."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    x_ticks = ticks([x for x, _ in finite] + [event.x for event in events])
    y_ticks = ticks([y for _, y in finite])
    x_axis = Axis(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    y_axis = Axis(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    body = [
        _text(LEFT, 28, title, size=17, weight=600),
        _text(LEFT, 47, subtitle, size=12, fill=MUTED),
        *_grid(x_axis, x_ticks, y_axis, y_ticks),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, x_label, anchor="middle"),
        _turned(20, (TOP + HEIGHT - BOTTOM) / 2, y_label),
        *(part for event in events for part in _event(event, x_axis)),
        _curve([(x_axis(x), y_axis(y)) for x, y in finite]),
    ]
    return "\n".join((_HEAD, *body, "</svg>", ""))


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


def _curve(pixels: list[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    return (
        f'<polyline points="{path}" fill="none" stroke="{CURVE}" stroke-width="2" '
        'stroke-linejoin="round"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"{dashed}/>'
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
