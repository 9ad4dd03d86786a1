"""QR codes in characters: two modules above each other in one cell, so that they are square."""

from __future__ import annotations

from typing import Final

QUIET: Final = 2
"""Modules of margin; scanners want to see where the code begins."""
_BLOCKS: Final = (" ", "▄", "▀", "█")


def qr_lines(text: str, *, light_on_dark: bool = True) -> list[str]:
    """Return the code of a text as lines of equal width.

    Args:
        text: at most about 2,900 characters.
        light_on_dark: whether the terminal shows light text on dark; the light modules are then
            drawn.
    """
    import segno

    modules = segno.make_qr(text, error="l").matrix_iter(border=QUIET)
    rows = [[bool(dark) != light_on_dark for dark in row] for row in modules]
    if len(rows) % 2:
        rows.append([light_on_dark] * len(rows[0]))
    return [
        "".join(_BLOCKS[2 * upper + lower] for upper, lower in zip(*pair, strict=True))
        for pair in zip(rows[::2], rows[1::2], strict=True)
    ]
