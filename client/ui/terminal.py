"""The terminal's abilities, by its environment, and the conversion of each line for them.

No colour, or nothing but ASCII: works on everything, Textual's own widgets included.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

_BRAILLE = range(0x2800, 0x2900)
_UPPER, _LOWER = 0x01 | 0x02 | 0x08 | 0x10, 0x04 | 0x40 | 0x20 | 0x80
ASCII = str.maketrans(
    {
        "●": "*", "◆": "@", "◐": "%", "○": "o", "✗": "x", "✓": "+", "▲": "^", "▼": "v", "▶": ">",
        "│": "|", "─": "-", "└": "+", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "━": "=", "┃": "|",
        "▏": "|", "▎": "|", "▍": "|", "▌": "|", "▋": "#", "▊": "#", "▉": "#", "█": "#",
        "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#",
        "…": "~", "–": "-", "·": ".", "µ": "u", "→": ">", "←": "<", "↑": "^", "↓": "v",
        "▕": "|", "▔": "-", "▐": "|", "┌": "+", "┐": "+", "┘": "+", "▸": ">", "⏎": "<",
        "\ufffd": "?", "\u00a0": " ", "❯": ">", "⭘": "o", "•": "*",
    }
)  # fmt: skip
"""One character for one character, so that nothing moves."""


def speaks_ascii_only(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the locale or the terminal cannot show Unicode.

    Without any locale nothing is known; such terminals (containers, mostly) show UTF-8.
    """
    locale = next((environ[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(n)), "")
    plain = locale.lower().replace("-", "")
    return environ.get("TERM", "") in ("dumb", "vt100", "vt220") or (
        bool(locale) and ("utf8" not in plain)
    )


def prefers_light(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal says that its background is light (``COLORFGBG``, ``15;0`` is dark)."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


def to_ascii(text: str) -> str:
    """Return text of as many cells in ASCII."""
    if text.isascii():
        return text
    return "".join(_ascii(character) for character in text.translate(ASCII))


@lru_cache(4096)
def _ascii(character: str) -> str:
    if character.isascii():
        return character
    if ord(character) in _BRAILLE:
        dots = ord(character) - _BRAILLE.start
        if not dots:
            return " "
        return ":" if dots & _UPPER and dots & _LOWER else "'" if dots & _UPPER else "."
    return "?" * cell_len(character)


@lru_cache(4096)
def _bare(style: Style) -> Style:
    return Style(
        bold=style.bold,
        italic=style.italic,
        underline=style.underline,
        reverse=style.reverse,
        strike=style.strike,
    )


class AsciiOnly(LineFilter):
    """Replaces what is not ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


class Colourless(LineFilter):
    """Removes colours; bold, underline and reverse stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments without colour."""
        return [
            Segment(text, _bare(style) if style else style, control)
            for text, style, control in segments
        ]
