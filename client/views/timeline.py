"""The Recovery tab: every fault as a line from detection to the resumption of work. Pure."""

from __future__ import annotations

from client.quantities import plural
from client.views import status, words
from client.views.dashboard import event_line
from client.views.record import Record
from client.views.recovery import Incident, Names, summary
from client.views.span import Box, Line, Row, Span, Tone, cut, line, spread
from client.views.text import clean, wrap

MARKS: dict[str, tuple[str, Tone]] = {
    "noticed": ("●", "bad"),
    "replaced": ("◆", "accent"),
    "copied": ("▲", "second"),
    "resumed": ("✓", "good"),
}
"""Noticed; another volunteer was given the part; the part was copied to it; work went on."""
AROUND_S = 2.0


def recovery_head(record: Record, box: Box) -> list[Line]:
    """Return the summary of all faults, and the losses."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    head = line((summary(record.incidents), "warn" if record.incidents.open else "strong"))
    ((_, counts), *_) = status.recovery(now)
    lines = [head, line(("microbatches: ", "muted"), *counts)]
    return [cut(found, box.width) for found in lines]


def recovery_rows(record: Record, box: Box) -> list[Row]:
    """Return one entry per fault, the newest first."""
    found = record.incidents.newest_first
    if not found:
        calm = "No volunteer was lost and no worker died since this view was opened."
        return [Row("none", (line((calm, "muted")),))]
    names = record.names
    return [Row(str(one.number), tuple(_incident(one, record.time, box, names))) for one in found]


def _incident(one: Incident, now: float, box: Box, names: Names) -> list[Line]:
    tone: Tone = "muted" if one.in_order else "warn" if one.open else "strong"
    stages = words.listed([str(stage) for stage in one.stages])
    place = f"{'stage' if len(one.stages) == 1 else 'stages'} {stages}, " if stages else ""
    took = "" if one.resumed is None else f"  {words.duration(one.resumed - one.detected)}"
    title = line((f"{words.clock(one.detected)} ", "muted"), (one.title(names), tone))
    facts = line((f"{place}step {one.step}", "muted"), (took, "good"))
    lines = [spread(title, facts, box.width)]
    if not one.in_order:
        lines.append(line("  ", *track(one, now, max(10, box.width - 4))))
        lines.append(cut((Span("  "), *_legs(one, now)), box.width))
    lines += [line((f"  {part}", "muted")) for part in _outcome(one, box.width - 2, names)]
    return [*lines, ()]


def track(one: Incident, now: float, cells: int) -> Line:
    """Return the timeline: marks at their moments, heavy where work stood still."""
    moments = _moments(one)
    end = max([at for _, at in moments] + ([now] if one.open else []))
    span = max(end - one.detected, 1e-3)
    places: dict[int, str] = {}
    for name, at in moments:
        place = round((at - one.detected) / span * (cells - 1))
        while place in places and place < cells - 1:
            place += 1
        while place in places and place > 0:
            place -= 1
        places[place] = name
    still = max((p for p, n in places.items() if n == "resumed"), default=cells)
    spans: list[Span] = []
    for place in range(cells):
        if place in places:
            spans.append(Span(*MARKS[places[place]]))
        else:
            spans.append(Span("━", "warn") if place < still else Span("─", "faint"))
    return _joined(spans)


def _legs(one: Incident, now: float) -> Line:
    parts: list[Span] = []
    times = dict(_moments(one))
    for name, (mark, tone) in MARKS.items():
        at = times.get(name)
        if at is not None:
            when = words.clock(at) if name == "noticed" else f"+{words.duration(at - one.detected)}"
            parts += [Span(f"{mark} ", tone), Span(f"{name} "), Span(f"{when}  ", "muted")]
        elif name == "resumed":
            parts += [
                Span("· ", "warn"),
                Span(f"not resumed for {words.duration(now - one.detected)}", "warn"),
            ]
        elif name == "replaced":
            wanted = "awaited" if one.bare else "not needed"
            parts += [Span(f"{mark} {name} {wanted}   ", "faint")]
    return tuple(parts)


def _outcome(one: Incident, cells: int, names: Names) -> list[str]:
    lost = f"{plural(one.steps_lost, 'step')} computed again" if one.steps_lost else ""
    told = [one.cover(names), lost, *one.told(names)]
    return wrap(clean("; ".join(filter(None, told))), cells, 3)


def story(record: Record, number: str | None, box: Box) -> list[Line]:
    """Return the node's events during fault ``number``, the last ones if ``box`` is too small for
    all."""
    one = next((o for o in record.incidents.newest_first if str(o.number) == number), None)
    if one is None:
        return [line(("choose a fault above", "muted"))]
    moments, names = [at for _, at in _moments(one)], record.names
    begin, end = one.detected - AROUND_S, max(moments) + AROUND_S if not one.open else record.time
    told = [
        event_line(event, names)
        for event in record.events
        if begin <= event.time <= end and event.level != "debug"
    ]
    return [cut(found, box.width) for found in told[-box.height :]]


def _moments(one: Incident) -> list[tuple[str, float]]:
    found = [
        ("noticed", one.detected),
        ("replaced", one.rematched),
        ("copied", one.transferred),
        ("resumed", one.resumed),
    ]
    return [(name, at) for name, at in found if at is not None]


def _joined(spans: list[Span]) -> Line:
    found: list[Span] = []
    for span in spans:
        if found and found[-1].tone == span.tone:
            found[-1] = Span(found[-1].text + span.text, span.tone)
        else:
            found.append(span)
    return tuple(found)
