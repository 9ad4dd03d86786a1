"""The views that commands print, as text.

Texts are the same in a terminal and in a pipe, so they have a width of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from client.control.snapshot import Snapshot
from client.views import leaderboard, matching, peers, stages, status
from client.views.record import Record
from client.views.span import Box, Line, Row, plain

BOX = Box(100)
UNCUT = Box(10_000)
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
            lines = _table(*leaderboard.leaderboard(now.contributors, now.peer, BOX))
        case None:
            facts = status.lines_of([*status.everything(now), *status.averaging(now)], UNCUT)
            lines = [*facts, (), *_table(*stages.stage_table(record, BOX))]
    return plain(lines)


def _table(head: Line, rows: Iterable[Row]) -> list[Line]:
    return [*([head] if head else []), *(found for row in rows for found in row.lines)]
