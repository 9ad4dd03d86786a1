"""The views that commands print, as text.

Texts are the same in a terminal and in a pipe, so they have a width of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from client.control.matches import MatchesSnapshot
from client.control.snapshot import ContributorView, Snapshot
from client.views import leaderboard, matching, peers, stages, status
from client.views.record import Record
from client.views.span import Box, Line, Row, plain

BOX = Box(100)
UNCUT = Box(10_000)


def status_report(now: Snapshot, matches: MatchesSnapshot | None = None) -> str:
    """Return all facts of a node, and the stages."""
    facts = [*status.everything(now), *status.averaging(now)]
    return plain([*status.lines_of(facts, UNCUT), (), *_stages(now, matches)])


def stages_report(now: Snapshot, matches: MatchesSnapshot | None = None) -> str:
    """Return the stages and who holds them."""
    return plain(_stages(now, matches))


def peers_report(now: Snapshot) -> str:
    """Return the members, how far each one is trusted and why, and who was expelled."""
    table = peers.peer_table(Record(snapshot=now), UNCUT, "", whole_ids=True)
    facts = status.lines_of([*status.trust(now), *peers.remarks(now)], UNCUT)
    return plain([*_table(*table), *([()] if facts else []), *facts])


def leaderboard_report(found: Sequence[ContributorView], own: str) -> str:
    """Return who contributed how much; ``own``: this volunteer's peer id, empty if unknown."""
    return plain(_table(*leaderboard.leaderboard(found, own, BOX)))


def matches_report(now: Snapshot, found: MatchesSnapshot) -> str:
    """Return which stages are ours and why."""
    return plain(matching.sentences(Record(snapshot=now, matches=found), BOX))


def _stages(now: Snapshot, matches: MatchesSnapshot | None) -> list[Line]:
    return _table(*stages.stage_table(Record(snapshot=now, matches=matches), BOX))


def _table(head: Line, rows: Iterable[Row]) -> list[Line]:
    return [*([head] if head else []), *(found for row in rows for found in row.lines)]
