"""Lines of toned text, which view functions return and widgets paint.

A tone stands for a meaning; themes give it a colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from client.views.text import clean, fit, width

Tone = Literal[
    "plain", "strong", "muted", "faint", "good", "warn", "bad", "accent", "second", "key"
]
TONES: tuple[Tone, ...] = get_args(Tone)


class Span(NamedTuple):
    """A piece of a line; the text is clean."""

    text: str
    tone: Tone = "plain"
    action: str = ""
    """Of the application, when it is clicked."""


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """The room that a view may fill, in cells."""

    width: int
    height: int = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """An entry of a list: one or more lines that belong together."""

    key: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    width: int
    right: bool = False


def line(*parts: Span | str | tuple[str, Tone]) -> Line:
    """Return a line of pieces; texts are cleaned here."""
    return tuple(_span(part) for part in parts)


def _span(part: Span | str | tuple[str, Tone]) -> Span:
    if isinstance(part, Span):
        return part
    if isinstance(part, str):
        return Span(clean(part))
    return Span(clean(part[0]), part[1])


def line_width(pieces: Line) -> int:
    """Return the cells that a line takes."""
    return sum(width(span.text) for span in pieces)


def cut(pieces: Line, cells: int) -> Line:
    """Return the line in at most ``cells`` cells."""
    if line_width(pieces) <= cells:
        return pieces
    kept: list[Span] = []
    for span in pieces:
        taken = width(span.text)
        if taken >= cells:
            kept.append(Span(fit(span.text + " ", cells).rstrip(), span.tone))
            break
        kept.append(span)
        cells -= taken
    return tuple(kept)


def spread(left: Line, right: Line, cells: int) -> Line:
    """Return one line with ``left`` flush left and ``right`` flush right, if there is room for
    both."""
    if line_width(left) + line_width(right) >= cells:
        right = ()
    gap = cells - line_width(left) - line_width(right)
    return (*cut(left, cells), Span(" " * max(0, gap)), *right)


def cells_of(columns: Sequence[Column], texts: Sequence[Span]) -> Line:
    """Return a table row: every text in its column, one blank between them."""
    found: list[Span] = []
    for column, span in zip(columns, texts, strict=True):
        if column.width > 0:
            found.append(Span(fit(span.text, column.width, right=column.right), span.tone))
            found.append(Span(" "))
    return tuple(found[:-1])


def head_of(columns: Sequence[Column]) -> Line:
    """Return the table's head."""
    return cells_of(columns, [Span(column.title, "muted") for column in columns])


def pair(label: str, value: Line | str, labels: int = 10) -> Line:
    """Return ``label   value``."""
    shown = (Span(clean(value)),) if isinstance(value, str) else value
    return (Span(fit(label, labels), "muted"), *shown)


def plain(lines: Sequence[Line]) -> str:
    """Return the text of lines without tones."""
    return "\n".join("".join(span.text for span in found).rstrip() for found in lines)
