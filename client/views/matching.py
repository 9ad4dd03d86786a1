"""The Matching tab: which parts we hold and where help is needed, in plain words; and what was
proposed, held and rejected, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from client.control.matches import MatchesSnapshot, SeatMatch, StageMatch
from client.control.names import with_names
from client.control.snapshot import Snapshot
from client.events import Decision
from client.views import words
from client.views.record import Record
from client.views.span import Box, Line, Row, Tone, cut, line
from client.views.stages import SERVING, StageRow, stage_rows
from client.views.text import clean, wrap

WAITING = (
    "Your part of the model is chosen as soon as this machine has been measured, which takes some "
    "seconds."
)
_STATES = {
    "fetching": "its numbers are being copied to this machine",
    "held": "it is kept for you, and training begins when every part has somebody",
    "proposed": "this machine has offered to take it, and waits for the answer",
    "leaving": "it is being handed over",
}
_DECISIONS: dict[Decision, Tone] = {
    "proposal": "accent",
    "hold": "good",
    "rejection": "warn",
    "place": "second",
    "settled": "good",
}
_TONES: dict[str, Tone] = {"error": "bad", "warning": "warn", "info": "plain", "debug": "muted"}
Said = tuple[str, Tone]


def sentences(record: Record, box: Box) -> list[Line]:
    """Return sentences about the parts of the model, the most important first."""
    now, found = record.snapshot, record.matches
    if now is None or found is None or found.state == "measuring":
        told: list[Said] = [(WAITING, "muted")]
    else:
        rows = stage_rows(record)
        told = [*_mine(now, found), *_needs(rows), *_rest(rows, found)]
    lines: list[Line] = []
    for text, tone in told:
        for number, part in enumerate(wrap(clean(text), max(1, box.width - 2), 4)):
            lines.append(line("  " if number else "· ", (part, tone)))
    if now is not None:
        lines += _who(now, box.height - len(lines))
    return [cut(one, box.width) for one in lines[: box.height]]


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


def _who(now: Snapshot, room: int) -> list[Line]:
    """Return a line per part with those who serve it, as far as there is room."""
    if room < len(now.stages) + 1:
        return []
    lines: list[Line] = [()]
    for stage in now.stages:
        who = [
            "you" if replica.peer == now.peer else words.named(replica.peer, now.names)
            for replica in stage.replicas
            if replica.state == SERVING
        ]
        told = ", ".join(who) or "nobody"
        number = f"part {stage.stage + 1}"
        lines.append(line((f"  {number:<9}", "muted"), (told, "plain" if who else "bad")))
    return lines


def _part(stage: int) -> str:
    return f"part {stage + 1}"


def _named(stages: list[int]) -> str:
    """Return ``part 1`` or ``parts 1 and 3``."""
    if len(stages) == 1:
        return _part(stages[0])
    return f"parts {words.listed([str(stage + 1) for stage in stages])}"


def _mine(now: Snapshot, found: MatchesSnapshot) -> Iterator[Said]:
    """Say what we hold."""
    count = len(now.stages)
    if count > 1:
        yield (
            f"The model is cut into {count} parts, stages 0 to {count - 1}. Data passes all of "
            "them, so every part needs somebody; those who share a part share its work.",
            "plain",
        )
    held = [seat for seat in found.seats if seat.stage is not None]
    if not held:
        yield "You hold no part of the model yet; one is being chosen for you.", "accent"
    for seat in held:
        yield _holding(seat, count)
    if sum(seat.state == "serving" for seat in held) > 1:
        yield (
            "You hold a second part because your machine has memory for both: so the faster "
            "part waits less for the slower one.",
            "plain",
        )


def _holding(seat: SeatMatch, count: int) -> Said:
    """Say what becomes of one part of ours."""
    stage = seat.stage or 0
    place = f"part {stage + 1} of {count} (stage {stage})"
    if seat.state == "serving":
        verb = "hold" if seat.seat == 0 else "also help with"
        return f"You {verb} {place}.", "good"
    return f"{_sentence(place)} is yours: {_STATES.get(seat.state, clean(seat.state))}.", "accent"


def _needs(rows: list[StageRow]) -> Iterator[Said]:
    """Say which parts lack volunteers, and which one sets the pace."""
    bare = [row.view.stage for row in rows if not row.serving]
    if bare:
        have = "has" if len(bare) == 1 else "have"
        yield (
            f"{_sentence(_named(bare))} {have} nobody: the training waits until somebody comes.",
            "bad",
        )
    for row in rows:
        if 0 < row.serving < row.wanted:
            lack = _few(row.wanted - row.serving)
            yield (
                f"{_sentence(_part(row.view.stage))} has {lack} too few, so newcomers go there "
                "first.",
                "warn",
            )
    if rows and all(row.wanted and row.serving >= row.wanted for row in rows):
        yield "Every part has as many volunteers as it should have.", "good"
    known = [row for row in rows if row.level > 0]
    if len(known) > 1 and not bare:
        slow = min(known, key=lambda row: row.level)
        fast = max(known, key=lambda row: row.level)
        if fast.level > 1.1 * slow.level:
            yield (
                f"{_sentence(_part(slow.view.stage))} is the slowest and sets the pace of all: "
                f"{words.rate(slow.level)} portions of work a second, "
                f"{_part(fast.view.stage)} could do {words.rate(fast.level)}.",
                "plain",
            )


def _rest(rows: list[StageRow], found: MatchesSnapshot) -> Iterator[Said]:
    """Say whether anybody should move, and who decides."""
    if found.paying_moves:
        move = found.paying_moves[0]
        yield (
            f"A move from {_part(move.home)} to {_part(move.to)} would speed the training up; it "
            "is made at the next check, one at a time.",
            "accent",
        )
    elif found.stages and all(row.serving for row in rows):
        yield "Nobody could move to another part and make the training faster.", "good"
    if reason := _stays(found.stages):
        yield reason, "muted"
    yield (
        "For each part one volunteer, which changes, compares who would speed the training up "
        f"most and decides.{_decides(found)}",
        "muted",
    )


def _stays(stages: list[StageMatch]) -> str:
    """Say why we do not take the part that we would like most after our own."""
    other = next((one for one in stages if one.seat is None and (one.stay or one.obstacle)), None)
    if other is None:
        return ""
    part = _sentence(_part(other.stage))
    if other.obstacle:
        return f"{part} would not take you, for others fit it better ({other.obstacle})."
    return f"{part} would take you, but it would not help the training ({other.stay})."


def _decides(found: MatchesSnapshot) -> str:
    return f" At the moment you do for {_named(found.decides)}." if found.decides else ""


def _few(number: int) -> str:
    return "one volunteer" if number == 1 else f"{number} volunteers"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
