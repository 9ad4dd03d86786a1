"""The leaderboard: who contributed how much to the steps that were closed here. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from client.control.snapshot import ContributorView
from client.views import words
from client.views.plot import bar
from client.views.span import Box, Column, Line, Row, Span, cells_of, head_of, line
from client.views.text import clean, wrap

_EMPTY = "No stage of this volunteer has closed a step yet: it counts whose work is in each."


def leaderboard(found: Sequence[ContributorView], own: str, box: Box) -> tuple[Line, list[Row]]:
    """Return head and rows, the most work first; a sentence while there is none.

    Args:
        found: the contributors.
        own: this volunteer's peer id, empty if unknown.
        box: room of the table.
    """
    if not found:
        return (), [Row("none", tuple(line((p, "muted")) for p in wrap(_EMPTY, box.width)))]
    wide = box.width >= 100
    bars = 20 if wide else 12
    columns = [
        Column("#", 3, right=True),
        Column("id", 6),
        Column("name", 24 if wide else 18),
        Column("microbatches", 12, right=True),
        Column("tokens", 8, right=True),
        Column("share", 6, right=True),
        Column("", bars),
    ]
    top = max(one.share for one in found)
    ranked = enumerate(found, start=1)
    rows = [
        Row(
            one.peer,
            (cells_of(columns, _cells(rank, one, own, one.share / top if top else 0.0, bars)),),
        )
        for rank, one in ranked
    ]
    return head_of(columns), rows


def _cells(rank: int, one: ContributorView, own: str, filled: float, bars: int) -> list[Span]:
    mine = one.peer == own
    return [
        Span(str(rank), "muted"),
        Span(words.short(one.peer), "key" if mine else "strong"),
        Span(clean(one.name) or ("you" if mine else words.NONE), "plain" if one.name else "muted"),
        Span(words.count(one.microbatches)),
        Span(words.count(one.tokens), "muted"),
        Span(words.share(one.share)),
        Span(bar(filled, bars), "accent"),
    ]
