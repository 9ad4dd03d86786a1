"""The views that commands print, as text.

Texts are the same in a terminal and in a pipe, so they have a width of their own.
"""

from collections.abc import Iterable
from typing import Literal

from client.control.snapshot import Snapshot
from client.views import matching, peers, stages, status, words
from client.views.record import Record
from client.views.span import Box, Column, Line, Row, Span, cells_of, head_of, line, plain
from client.views.text import clean

BOX = Box(100)
UNCUT = Box(10_000)
NOT_YET = "No stage of this volunteer has closed a step yet: it counts whose work is in each."
LEADERBOARD = (
    Column("#", 3, right=True),
    Column("id", 6),
    Column("name", 24),
    Column("microbatches", 12, right=True),
    Column("tokens", 8, right=True),
    Column("share", 6, right=True),
)
Section = Literal["peers", "stages", "matches", "leaderboard"]


def report(section: Section | None, now: Snapshot) -> str:
    """Return one section of what a node says; None: all facts of it, and the stages."""
    record = Record(snapshot=now)
    match section:
        case "peers":  # who is near, how far each is trusted and why, and who was expelled
            facts = status.lines_of([*status.trust(now), *peers.remarks(now)], UNCUT)
            lines = _table(*peers.peer_table(record, UNCUT, "", whole_ids=True))
            lines += [(), *facts] if facts else []
        case "stages":
            lines = _table(*stages.stage_table(record, BOX))
        case "matches":
            lines = matching.sentences(record, BOX)
        case "leaderboard":
            lines = _table(*_leaderboard(now))
        case None:
            facts = status.lines_of([*status.everything(now), *status.averaging(now)], UNCUT)
            lines = [*facts, (), *_table(*stages.stage_table(record, BOX))]
    return plain(lines)


def _leaderboard(now: Snapshot) -> tuple[Line, list[Row]]:
    """Return who contributed how much to the steps that were closed here, the most work first."""
    if not now.contributors:
        return (), [Row("none", (line((NOT_YET, "muted")),))]
    found = []
    for rank, one in enumerate(now.contributors, start=1):
        name = clean(one.name) or ("you" if one.peer == now.peer else words.NONE)
        numbers = words.count(one.microbatches), words.count(one.tokens), words.share(one.share)
        cells = [Span(text) for text in (str(rank), words.short(one.peer), name, *numbers)]
        found.append(Row(one.peer, (cells_of(LEADERBOARD, cells),)))
    return head_of(LEADERBOARD), found


def _table(head: Line, rows: Iterable[Row]) -> list[Line]:
    return [*([head] if head else []), *(found for row in rows for found in row.lines)]
