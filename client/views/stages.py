"""The stage map: the replicas of each slice of the model, their rates, and the reasons. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from client.control.snapshot import ReplicaView, Snapshot, StageMatch, StageView
from client.views import words
from client.views.plot import bar
from client.views.record import Record
from client.views.span import Box, Column, Line, Row, Span, Tone, cells_of, cut, head_of, line
from client.views.text import width

SERVING = "serving"
MOST_MARKS = 8
"""Of holders on the line of a stage."""
_MARKS: dict[str, tuple[str, Tone]] = {
    "serving": ("●", "good"),
    "fetching": ("◐", "accent"),
    "leaving": ("○", "warn"),
}
LEGEND = line(
    ("◆", "key"), (" you  ", "muted"), ("●", "good"), (" serves  ", "muted"),
    ("◐", "accent"), (" fetches  ", "muted"),
    ("○", "muted"), (" other", "muted"), ("   /s: microbatches a second", "muted"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage as it is shown."""

    view: StageView
    mine: bool
    serving: int
    wanted: int
    """Replicas it should have; 0: not known."""
    level: float
    """Microbatches per second of its replicas together; 0: not known."""
    why: str
    tone: Tone


def stage_rows(record: Record) -> list[StageRow]:
    """Return all stages in order."""
    now = record.snapshot
    if now is None:
        return []
    known = {stage.stage: stage for stage in now.matches.stages} if now.matches else {}
    slowest = _slowest(known.values())
    return [_row(stage, known.get(stage.stage), now, slowest) for stage in now.stages]


def stage_map(record: Record, box: Box) -> list[Line]:
    """Return the head of the table and a line per stage; where room is short, those that lack
    replicas first."""
    rows, room = stage_rows(record), max(1, box.height - 1)
    shown = rows
    if len(rows) > room:
        order = {"bad": 0, "warn": 1, "accent": 2}
        chosen = sorted(rows, key=lambda r: (order.get(r.tone, 4 - r.mine), r.view.stage))
        shown = sorted(chosen[: room - 1], key=lambda row: row.view.stage)
    head, found = _table(record, shown, box)
    lines = [*([head] if head else []), *(row.lines[0] for row in found)]
    if len(shown) < len(rows):
        lines.append(line((f"   and {len(rows) - len(shown)} more: press 2", "muted")))
    return lines


def stage_table(record: Record, box: Box) -> tuple[Line, list[Row]]:
    """Return head and rows of the Swarm tab: numbers, then holders and reason below them."""
    return _table(record, stage_rows(record), box)


def _table(record: Record, rows: list[StageRow], box: Box) -> tuple[Line, list[Row]]:
    now, wide = record.snapshot, box.width >= 100
    if now is None or not now.stages:
        return (), [Row("none", (line(("the stages are not known yet", "muted")),))]
    columns = [
        Column("stage", 5, right=True),
        Column("", MOST_MARKS),
        Column("layers", 6 if wide else 0, right=True),
        Column("version", 7, right=True),
        Column("serve it", 8, right=True),
        Column("wanted", 6, right=True),
        Column("rate/s", 6, right=True),
        Column("", 12 if wide else 0),
    ]
    taken = sum(column.width + 1 for column in columns if column.width)
    columns.append(Column("why", max(10, box.width - taken)))
    top = max((row.level for row in rows), default=0.0)
    head = cut(head_of(columns), box.width)
    return head, [_table_row(row, columns, now, top, box) for row in rows]


def _table_row(row: StageRow, columns: list[Column], now: Snapshot, top: float, box: Box) -> Row:
    view, me, names = row.view, now.peer, now.names
    replicas = sorted(view.replicas, key=lambda r: (r.peer != me, r.state != SERVING))
    short_of = row.serving < max(1, row.wanted)
    numbers = cells_of(
        columns,
        [
            Span(str(view.stage), "key" if row.mine else "strong"),
            Span("".join(_mark(replica, me)[0] for replica in replicas[:MOST_MARKS]), row.tone),
            Span(str(view.layers)),
            Span(words.count(view.version)),
            Span(str(row.serving), "warn" if short_of else "good"),
            Span(str(row.wanted or words.NONE), "muted"),
            Span(words.rate(row.level) if row.level else words.NONE),
            Span(bar(row.level / top if top else 0.0, 12), "accent"),
            Span(row.why, row.tone),
        ],
    )
    holders = [_holder(replica, me, names) for replica in view.replicas]
    lines: list[Line] = [numbers]
    current: Line = (Span("      "),)
    for holder in holders[:24]:
        if sum(width(s.text) for s in (*current, *holder)) > box.width:
            lines.append(current)
            current = (Span("      "),)
        current += holder
    lines.append(current if holders else (Span("      nobody", "bad"),))
    if len(holders) > 24:
        lines.append((Span(f"      and {len(holders) - 24} more", "muted"),))
    return Row(f"stage-{view.stage}", tuple(cut(found, box.width) for found in lines))


def _holder(replica: ReplicaView, me: str, names: Mapping[str, str]) -> Line:
    mark, tone = _mark(replica, me)
    name = "you" if replica.peer == me else words.named(replica.peer, names)
    rate = f" {words.rate(replica.rate)}/s" if replica.rate else ""
    state = "" if replica.state == SERVING else f" {replica.state}"
    return line((mark, tone), f" {name}", (f"{rate}{state}   ", "muted"))


def _mark(replica: ReplicaView, me: str) -> tuple[str, Tone]:
    if replica.peer == me and replica.state == SERVING:
        return "◆", "key"
    return _MARKS.get(replica.state, ("○", "muted"))


def _row(
    stage: StageView, known: StageMatch | None, now: Snapshot, slowest: int | None
) -> StageRow:
    serving = sum(replica.state == SERVING for replica in stage.replicas)
    mine = any(seat.stage == stage.stage for seat in now.seats)
    wanted = known.redundancy if known else 0
    why, tone = _why(stage, known, serving, wanted, slowest == stage.stage)
    return StageRow(stage, mine, serving, wanted, known.shared_level if known else 0.0, why, tone)


def _why(
    stage: StageView, known: StageMatch | None, serving: int, wanted: int, slowest: bool
) -> tuple[str, Tone]:
    fetching = sum(replica.state == "fetching" for replica in stage.replicas)
    coming = f"; {fetching} on the way" if fetching else ""
    if serving == 0:
        return f"the swarm waits{coming}", "bad"
    if serving < wanted:
        return f"lacks {wanted - serving}{coming or ': filled first'}", "warn"
    if known is None:
        return f"not known yet{coming}", "muted"
    spare = f"{serving - wanted} to spare" if serving > wanted else "enough"
    if slowest:
        return f"slowest; {spare}{coming}", "accent"
    return f"{spare}{coming}", "muted"


def _slowest(stages: Iterable[StageMatch]) -> int | None:
    """Return the stage that sets the pace, if one is clearly slower than the others."""
    levels = sorted((stage.shared_level, stage.stage) for stage in stages)
    return levels[0][1] if len(levels) > 1 and 1.05 * levels[0][0] < levels[1][0] else None
