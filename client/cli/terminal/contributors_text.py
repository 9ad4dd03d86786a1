"""The leaderboard as a table of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from client.cli.terminal.table import aligned
from client.control.snapshot import ContributorView
from client.quantities import plural

NOBODY = (
    "nobody's work is vouched for yet: two others of a volunteer's stage have to have counted it,"
    " and they say so about once a minute"
)
ALONE = "* said by one other volunteer alone: two are needed before it counts"
LEGEND = (
    "microbatches of committed steps, in every stage, as at least two others of the stage counted "
    "them"
)


def leaderboard_lines(found: Sequence[ContributorView], own: str) -> Iterator[str]:
    """Yield the table with its legend; ``own``: this volunteer's peer id, empty if unknown."""
    if not found:
        yield NOBODY
        return
    rows = [_row(rank, one, own) for rank, one in enumerate(found, start=1)]
    head = ["", "volunteer", "name", "microbatches", "tokens", "share", "vouched for by"]
    yield from aligned(head, rows)
    yield LEGEND
    if any(one.unvouched for one in found):
        yield ALONE


def _row(rank: int, one: ContributorView, own: str) -> list[str]:
    who = [str(rank), one.peer[-6:] + (" (you)" if one.peer == own else ""), one.name or "-"]
    if not one.vouchers:
        return [*who, f"{one.unvouched:,}*", "-", "-", "1 other"]
    return [
        *who,
        f"{one.microbatches:,}",
        f"{one.tokens:,}",
        f"{one.share:.1%}",
        plural(one.vouchers, "other"),
    ]
