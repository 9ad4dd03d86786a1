"""Cleans texts of strangers: all pass one function before they are shown.

Names, reasons and log lines may come from other volunteers. Shown raw, they could move the cursor,
set the title, fake other lines, or turn the reading order around. Markup needs no escape here:
nothing that is shown is ever parsed as markup.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

REPLACEMENT = "\ufffd"
MAX_CHARACTERS = 600
MAX_MARKS = 2
"""Combining marks on one letter; more only serve to write over other lines."""
_ESCAPE = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)?"  # OSC: titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]{0,4096}(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]{0,8}[0-~]?"
)
_BREAKS = frozenset("\n\r\t\v\f\x85\u2028\u2029")
_PLAIN = re.compile(r"[ -~]*")


def clean(text: object, limit: int = MAX_CHARACTERS) -> str:
    """Return text as one line of at most ``limit`` characters that only prints.

    Escape sequences are removed; line breaks become blanks; other control characters, bidirectional
    and invisible formatting, private-use characters and surrogates become ``REPLACEMENT``.
    """
    raw = str(text)[: 4 * limit + 64]
    if not _PLAIN.fullmatch(raw):
        raw = "".join(_harmless(_ESCAPE.sub("", raw)))
    return raw if len(raw) <= limit else raw[: limit - 1] + "…"


def width(text: str) -> int:
    """Return the terminal cells that cleaned text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, cells: int, *, right: bool = False) -> str:
    """Return cleaned text in exactly ``cells`` cells: cut with an ellipsis, or filled with blanks.

    Args:
        text: cleaned text.
        cells: width wanted; below 1 gives nothing.
        right: flush right.
    """
    missing = cells - width(text)
    if missing >= 0:
        return " " * missing + text if right else text + " " * missing
    if cells < 1:
        return ""
    return set_cell_size(text, cells - 1) + "…"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines of cleaned texts whose columns begin below each other; the last one is as long as
    it is."""
    widths = [max(map(width, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(map(fit, row, widths)).rstrip()


def wrap(text: str, cells: int, lines: int = 100) -> list[str]:
    """Break cleaned text at blanks into at most ``lines`` lines; the last is cut if need be."""
    found: list[str] = []
    rest = text.strip()
    while rest and len(found) < lines - 1 and width(rest) > cells > 0:
        line = set_cell_size(rest, cells)
        blank = line.rfind(" ")
        if rest[len(line) : len(line) + 1] == " ":
            blank = len(line)
        used = blank if blank > cells // 3 else max(1, len(line.rstrip()))
        found.append(rest[:used].rstrip())
        rest = rest[used:].lstrip()
    if rest:
        found.append(fit(rest, cells).rstrip() if width(rest) > cells else rest)
    return found


def _harmless(text: str) -> list[str]:
    kept: list[str] = []
    marks = 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if character in _BREAKS:
            kept.append(" ")
        elif category[0] == "C" or category in ("Zl", "Zp"):
            kept.append(REPLACEMENT)
        elif marks <= MAX_MARKS:
            kept.append(" " if category == "Zs" else character)
    return kept
