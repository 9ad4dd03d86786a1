"""The views that commands print, as text.

Texts are the same in a terminal and in a pipe, so they have a width of their own.
"""

from collections.abc import Iterable
from typing import Literal

from client.control.snapshot import InvitedMember, Snapshot
from client.views import matching, peers, stages, status, words
from client.views.record import Record
from client.views.span import Box, Column, Line, Row, Span, cells_of, head_of, line, plain
from client.views.text import aligned, clean

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
NO_TREE = "anybody who has an invite is a member of this swarm: see volunteer status peers"
Section = Literal["peers", "stages", "members", "matches", "leaderboard"]


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
        case "members":
            lines = [line(row) for row in _members(now)]
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


def _members(now: Snapshot) -> Iterable[str]:
    """Return the members, each below who invited it."""
    if now.members is None:
        return [NO_TREE]
    rows = [
        (
            "  " * one.depth + clean(one.peer) + (" (you)" if one.peer == now.peer else ""),
            clean(now.names.get(one.peer, "-")),
            "yes" if one.linked else "no",
            clean(_standing(one)),
        )
        for one in now.members
    ]
    return aligned(("member", "name", "here", "standing"), rows)


def _standing(one: InvitedMember) -> str:
    if one.expelled_by:
        why = f": {one.reason}" if one.reason else ""
        return f"expelled by {words.short(one.expelled_by)}{why}"
    if not one.invited_by:
        return "founder"
    return f"invited by {words.short(one.invited_by)}" + (", yours to expel" if one.ours else "")


def _table(head: Line, rows: Iterable[Row]) -> list[Line]:
    return [*([head] if head else []), *(found for row in rows for found in row.lines)]
