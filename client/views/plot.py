"""Curves in braille: eight dots to a cell, with figures on both axes; sparks and bars. Pure."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, pairwise

from client.views.span import Box, Line, Span, Tone
from client.views.text import fit

Point = tuple[float, float]
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character, by column, from the top down."""
_BARS = "▁▂▃▄▅▆▇█"
_BLOCKS = " ▏▎▍▌▋▊▉█"
BRAILLE = 0x2800
SMOOTHED = 30
"""Sections of the smoothed line over many points."""
JOINED = 10
"""Rows from which a second curve is joined; in fewer its line would hide the first."""
CURVE: Tone = "accent"
OVER: Tone = "second"
"""Tones of a curve, and of a second one."""
ABSURD = 1e9
"""Above any step or loss; NaN is not below it either."""


def curve(
    points: Sequence[Point],
    box: Box,
    over: Sequence[Point] = (),
) -> list[Line]:
    """Return ``box.height`` lines: the curve, a scale on the left, a scale below.

    With more points than columns the curve is a smoothed line over the points, which are faint.

    Args:
        points: (x, y) with x rising; absurd ones are left out.
        box: room, at least 16 x 4 cells; below that nothing is drawn.
        over: a second curve of the same measure, drawn over the first.
    """
    seen = _sensible(points)
    if len(seen) < 2 or box.width < 16 or box.height < 4:
        return []
    left, right = seen[0][0], seen[-1][0]
    above = [(min(x, right), y) for x, y in _sensible(over) if x >= left]
    low, high = _bounds([y for _, y in [*seen, *above]])
    rows, labels = box.height - 2, _labels(low, high, box.height - 2)
    margin = max(len(label) for label in labels) + 1
    columns = box.width - margin - 1
    if columns < 4:
        return []
    many = len(seen) > columns
    frame = columns, rows, (left, right), (low, high)
    canvas = _draw(_smooth(seen, high) if many else seen, *frame)
    behind = _draw(seen, *frame, joined=False) if many else None
    front = _draw(above, *frame, joined=len(above) > 1 and rows >= JOINED) if above else None
    lines: list[Line] = [
        (
            Span(fit(labels[row], margin - 1, right=True) + " ", "muted"),
            Span("│", "faint"),
            *_painted(
                canvas[row],
                behind[row] if behind else [0] * columns,
                front[row] if front else [0] * columns,
            ),
        )
        for row in range(rows)
    ]
    return [
        *lines,
        (Span(" " * margin), Span("└" + "─" * columns, "faint")),
        _scale(margin, columns, left, right),
    ]


def spark(values: Sequence[float], cells: int) -> str:
    """Return the last ``cells`` values as bars from 0 to their maximum."""
    shown = [value if math.isfinite(value) else 0.0 for value in values[-cells:]]
    top = max(shown, default=0.0)
    if top <= 0:
        return "".join(_BARS[0] for _ in shown)
    steps = len(_BARS) - 1
    return "".join(_BARS[round(max(0.0, value) / top * steps)] for value in shown)


def bar(share: float, cells: int) -> str:
    """Return a bar that fills ``share`` (0 to 1) of ``cells`` cells, blanks behind it."""
    eighths = round(min(max(share if math.isfinite(share) else 0.0, 0.0), 1.0) * cells * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[part] if part else "")).ljust(cells)


def progress(share: float, cells: int) -> Line:
    """Return a thin bar of ``cells`` cells that is heavy as far as ``share`` (0 to 1)."""
    full = round(min(max(share if math.isfinite(share) else 0.0, 0.0), 1.0) * cells)
    return Span("━" * full, "accent"), Span("─" * (cells - full), "faint")


def _sensible(points: Iterable[Point]) -> list[Point]:
    return [(x, y) for x, y in points if abs(x) < ABSURD and abs(y) < ABSURD]


def _painted(dots: Sequence[int], behind: Sequence[int], front: Sequence[int]) -> list[Span]:
    """Return a row of cells: those of the second line in its tone, those of the line in the line's,
    those that only have points faint."""
    cells = zip(dots, behind, front, strict=True)
    toned: list[tuple[int, Tone]] = [
        (over | on, OVER) if over else (on or under, "faint" if under and not on else CURVE)
        for on, under, over in cells
    ]
    return [
        Span("".join(chr(BRAILLE + bits) if bits else " " for bits, _ in run), painted)
        for painted, run in groupby(toned, key=lambda cell: cell[1])
    ]


def _smooth(points: Sequence[Point], high: float) -> list[Point]:
    """Return the mean of each point and its neighbours, as many on one side as on the other: so the
    line begins and ends with the points and does not lag behind them."""
    reach = len(points) // SMOOTHED
    sums = list(accumulate((min(y, high) for _, y in points), initial=0.0))
    smoothed = []
    for at, (x, _) in enumerate(points):
        side = min(at, len(points) - 1 - at, reach)
        smoothed.append((x, (sums[at + side + 1] - sums[at - side]) / (2 * side + 1)))
    return smoothed


def _draw(
    points: Sequence[Point],
    columns: int,
    rows: int,
    xs: Point,
    ys: Point,
    *,
    joined: bool = True,
) -> list[list[int]]:
    canvas = [[0] * columns for _ in range(rows)]
    wide, tall = 2 * columns - 1, 4 * rows - 1
    spots = [
        (
            round((x - xs[0]) / (xs[1] - xs[0]) * wide) if xs[1] > xs[0] else 0,
            round((ys[1] - min(max(y, ys[0]), ys[1])) / (ys[1] - ys[0]) * tall),
        )
        for x, y in points
    ]
    for (x0, y0), (x1, y1) in pairwise(spots) if joined else zip(spots, spots, strict=True):
        for column, height in _stroke(x0, y0, x1, y1):
            canvas[height // 4][column // 2] |= _DOTS[column % 2][height % 4]
    return canvas


def _stroke(x0: int, y0: int, x1: int, y1: int) -> Iterable[tuple[int, int]]:
    length = max(abs(x1 - x0), abs(y1 - y0), 1)
    for part in range(length + 1):
        yield x0 + round((x1 - x0) * part / length), y0 + round((y1 - y0) * part / length)


def _bounds(values: Sequence[float]) -> Point:
    """Return bounds a little wider than the values; one wild value does not flatten the rest."""
    ordered = sorted(values)
    high = ordered[-1]
    if len(ordered) >= 20:
        usual = ordered[int(0.98 * (len(ordered) - 1))]
        if high > ordered[0] + 3 * (usual - ordered[0]):
            high = usual
    low = ordered[0]
    if high - low < 1e-9 * max(1.0, abs(high)):
        return low - 0.5, high + 0.5
    room = 0.04 * (high - low)
    return low - room, high + room


def _labels(low: float, high: float, rows: int) -> list[str]:
    """Return figures for the top, the bottom and some rows between, empty elsewhere."""
    number = max(2, (rows + 2) // 4)
    named = {round(n * (rows - 1) / (number - 1)) for n in range(number)}
    digits = max(0, min(4, 1 - math.floor(math.log10(high - low))))
    return [
        f"{high - (high - low) * (4 * row + 1.5) / (4 * rows - 1):.{digits}f}"
        if row in named
        else ""
        for row in range(rows)
    ]


def _scale(margin: int, columns: int, left: float, right: float) -> Line:
    first, last = f"step {left:.0f}", f"{right:.0f}"
    middle = f"{(left + right) / 2:.0f}"
    text = fit(first, columns - len(last)) + last
    place = columns // 2 - len(middle) // 2
    if place > len(first) + 2 and place + len(middle) + 2 < columns - len(last):
        text = text[:place] + middle + text[place + len(middle) :]
    return (Span(" " * (margin + 1) + fit(text, columns), "muted"),)
