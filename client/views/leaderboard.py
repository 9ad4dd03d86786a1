"""The leaderboard: who contributed how much, as others of each stage counted it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from client.control.snapshot import ContributorView
from client.quantities import plural
from client.views import words
from client.views.plot import bar
from client.views.span import Box, Column, Line, Row, Span, cells_of, head_of, line
from client.views.text import clean, wrap

TITLE = "Who contributed, as others of their stage counted it"
_EMPTY = (
    "Nobody's work is vouched for yet. Every volunteer says about once a minute what the others of "
    "its stage did; what two others say of somebody counts, and its own word does not."
)


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
    columns = [
        Column("#", 3, right=True),
        Column("id", 6),
        Column("name", 24 if wide else 18),
        Column("microbatches", 12, right=True),
        Column("tokens", 8, right=True),
        Column("share", 6, right=True),
        Column("", 20 if wide else 0),
    ]
    taken = sum(column.width + 1 for column in columns if column.width)
    columns.append(Column("vouched for by", max(8, box.width - taken)))
    top = max(one.share for one in found)
    ranked = enumerate(found, start=1)
    rows = [
        Row(one.peer, (cells_of(columns, _cells(rank, one, top, mine=one.peer == own)),))
        for rank, one in ranked
    ]
    return head_of(columns), rows


def _cells(rank: int, one: ContributorView, top: float, *, mine: bool) -> list[Span]:
    vouched = one.vouchers > 0
    count = one.microbatches if vouched else one.unvouched
    by = plural(one.vouchers, "other") if vouched else "1: too few"
    return [
        Span(str(rank), "muted"),
        Span(words.short(one.peer), "key" if mine else "strong"),
        Span(clean(one.name) or ("you" if mine else words.NONE), "plain" if one.name else "muted"),
        Span(words.count(count), "plain" if vouched else "muted"),
        Span(words.count(one.tokens) if vouched else words.NONE, "muted"),
        Span(f"{100 * one.share:.1f} %" if vouched else words.NONE),
        Span(bar(one.share / top if top else 0.0, 20), "accent"),
        Span(by, "good" if vouched else "warn"),
    ]
