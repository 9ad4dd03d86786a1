"""The Matching tab: the stages we want, with the numbers behind it, and the results. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from client.control.matches import MatchesSnapshot, SeatMatch, StageMatch
from client.control.names import with_names
from client.events import Decision
from client.views import words
from client.views.record import Record
from client.views.span import (
    Box,
    Column,
    Line,
    Row,
    Span,
    Tone,
    cells_of,
    cut,
    head_of,
    line,
    pair,
)
from client.views.text import clean, wrap

WAITING = "the matching starts when this machine has been measured"
STABLE = "none would help both a volunteer and a stage"
LEGEND = line(
    ("main, second", "strong"), (": stages you hold   ", "muted"),
    ("steward", "strong"), (": member that decides who holds it", "muted"),
)  # fmt: skip
_DECISIONS: dict[Decision, Tone] = {
    "proposal": "accent",
    "hold": "good",
    "rejection": "warn",
    "place": "second",
    "settled": "good",
}
_TONES: dict[str, Tone] = {"error": "bad", "warning": "warn", "info": "plain", "debug": "muted"}


def seats(record: Record, box: Box) -> list[Line]:
    """Return our stages, the stages we decide for, and the blocking pairs."""
    found = record.matches
    if found is None or found.state == "measuring":
        return [cut(one, box.width) for one in (line((WAITING, "muted")), _blocking(found))]
    lines = [_seat(seat) for seat in found.seats] or [pair("holds", "no stage yet", "muted")]
    lines.append(_blocking(found))
    if found.stewardships:
        mine = words.listed([str(view.stage) for view in found.stewardships])
        noun = "stage" if len(found.stewardships) == 1 else "stages"
        lines.append(pair("decides", f"as the steward you decide who holds {noun} {mine}"))
    if found.refused:
        told = ", ".join(f"{clean(name, 40)} {n}" for name, n in sorted(found.refused.items()))
        lines.append(pair("ignored", line((f"messages without effect: {told}", "muted"))))
    return [cut(one, box.width) for one in lines[: max(box.height, 1)]]


def preferences(record: Record, box: Box) -> tuple[Line, list[Row]]:
    """Return the stages in the order in which we want them, the reason below each."""
    found = record.matches
    if found is None or not found.stages:
        return (), [Row("none", (line((WAITING, "muted")),))]
    wide = box.width >= 100
    columns = [
        Column("#", 2, right=True),
        Column("stage", 5, right=True),
        Column("you could do", 12, right=True),
        Column("it has", 8, right=True),
        Column("its aim", 8, right=True),
        Column("replicas", 8, right=True),
        Column("download", 10 if wide else 0, right=True),
        Column("saves it", 9 if wide else 0, right=True),
        Column("its bar", 8 if wide else 0, right=True),
        Column("so", max(8, box.width - (85 if wide else 50))),
    ]
    rows = []
    for rank, stage in enumerate(found.stages, start=1):
        verdict, tone = _verdict(stage)
        numbers = cells_of(columns, _numbers(rank, stage, verdict, tone))
        why = [
            line(("         ", "muted"), (part, "muted"))
            for part in _why(stage, box.width - 9, record.names)
        ]
        rows.append(Row(f"stage-{stage.stage}", (numbers, *why)))
    return head_of(columns), rows


def decisions(record: Record, box: Box) -> list[Row]:
    """Return proposals, holds and rejections with their reasons, oldest first."""
    found = record.matches
    if found is None or not found.explanations:
        return [Row("none", (line(("nothing was proposed, held or rejected yet", "muted")),))]
    rows, names = [], record.names
    for number, told in enumerate(found.explanations):
        kind, tone = told.decision or "note", _DECISIONS.get(told.decision, "muted")
        tone = _TONES[told.level] if told.level in ("warning", "error") else tone
        said = with_names(told.words, told.members, names)
        parts = wrap(clean(said), max(10, box.width - 20), 3)
        first = line(
            (f"{words.clock(told.time)} ", "muted"),
            (f"{kind:<10} ", tone),
            parts[0] if parts else "",
        )
        more = [line(" " * 20 + part) for part in parts[1:]]
        rows.append(Row(f"{told.time}-{number}", (first, *more)))
    return rows


def _seat(seat: SeatMatch) -> Line:
    name = ("main", "second")[seat.seat] if seat.seat in (0, 1) else f"seat {seat.seat}"
    place = "no stage" if seat.stage is None else f"stage {seat.stage}"
    since = f" since {words.clock(seat.since)}" if seat.since is not None else ""
    tone: Tone = "good" if seat.state == "serving" else "accent"
    return pair(
        name,
        line(
            (place, "strong"), " ", (clean(seat.state, 20), tone), (since, "muted"),
        ),
    )  # fmt: skip


def _blocking(found: MatchesSnapshot | None) -> Line:
    if found is None or not found.stages:
        return pair("moves", line(("not known yet", "muted")), labels=10)
    if not found.paying_moves:
        return pair("moves", line((STABLE, "good")))
    pairs = [f"stage {m.home} to {m.to}" for m in found.paying_moves[:4]]
    return pair(
        "moves",
        line((f"{len(found.paying_moves)} would pay: ", "warn"), words.listed(pairs)),
    )


def _numbers(rank: int, stage: StageMatch, verdict: str, tone: Tone) -> list[Span]:
    enough = stage.copies >= stage.redundancy
    return [
        Span(str(rank), "muted"),
        Span(str(stage.stage), "key" if stage.seat is not None else "strong"),
        Span(f"{words.rate(stage.our_rate)}/s"),
        Span(f"{words.rate(stage.shared_level)}/s"),
        Span(f"{words.rate(stage.quota)}/s", "muted"),
        Span(f"{stage.copies} of {stage.redundancy}", "plain" if enough else "warn"),
        Span(_download(stage.phi), "muted"),
        Span(f"{1e6 * stage.wish_gain:.3g} µs", "muted"),
        Span(*_bar(stage)),
        Span(verdict, tone),
    ]


def _download(phi: float) -> str:
    """Describe the loss of our score there due to the download of the stage."""
    return "have it" if phi >= 1.0 else f"costs {100 * (1 - max(0.0, phi)):.0f} %"


def _bar(stage: StageMatch) -> tuple[str, Tone]:
    """Describe whether the stage would accept us: it accepts scores above its cutoff."""
    if not stage.cutoff:
        return "open", "muted"
    return ("passed", "good") if stage.score > stage.cutoff else ("too high", "warn")


def _verdict(stage: StageMatch) -> tuple[str, Tone]:
    if stage.seat is not None:
        return ("your main" if stage.seat == 0 else "your second"), "good"
    if stage.obstacle:
        return "no place", "warn"
    if stage.stay:
        return "not worth it", "muted"
    return "would propose", "accent"


def _why(stage: StageMatch, cells: int, names: Mapping[str, str]) -> list[str]:
    held = "your main stage" if stage.seat == 0 else "you hold it beside your main stage"
    reason = (
        held if stage.seat is not None else stage.obstacle or stage.stay or "it would accept you"
    )
    urgent = "it lacks replicas and goes first; " if stage.urgent else ""
    steward = (
        f"; its steward {words.named(stage.steward, names)} decides ({clean(stage.phase, 16)})"
    )
    return wrap(clean(f"{urgent}{reason}{steward}"), cells, 2)
