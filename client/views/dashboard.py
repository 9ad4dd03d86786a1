"""The panels of the Dashboard: loss, this machine, network, peers, events. Pure."""

from collections.abc import Mapping
from itertools import islice

from client.control.snapshot import EventView
from client.views import status, words
from client.views.plot import curve, spark
from client.views.record import Record
from client.views.span import Box, Line, Span, Tone, cut, line
from client.views.text import clean, fit, wrap

QUIET = ("StepCommitted", "VersionEvaluated", "StageClosed", "StageAssigned")
"""Kinds of events that other panels show better."""
LABELS = 8
_LEVELS: dict[str, Tone] = {"error": "bad", "warning": "warn", "info": "plain", "debug": "muted"}


def loss(record: Record, box: Box) -> list[Line]:
    """Return the loss curve with its figures above it."""
    points = [(float(point.step), point.loss) for point in record.losses.points()]
    if len(points) < 2:
        waits = "the curve begins with the second step that the swarm completes"
        return [line(("no loss yet", "muted")), *_wrapped(waits, box, "faint")]
    values = [value for _, value in points]
    since = f" at step {points[0][0]:.0f}" if box.width >= 48 else " first"
    figures = line(
        (f"{values[-1]:.3f}", "strong"),
        (" now   ", "muted"),
        (f"{min(values):.3f}", "good"),
        (" lowest   ", "muted"),
        (f"{values[0]:.3f}", "plain"),
        (since, "muted"),
    )
    head = [cut(figures, box.width), *_held_out(record, box)]
    told = [(float(point.step), point.loss) for point in record.held_out.points()]
    return head + curve(points, Box(box.width, box.height - len(head)), over=told)


def _held_out(record: Record, box: Box) -> list[Line]:
    now = record.snapshot
    return status.lines_of(status.held_out(now), box) if now else []


def machine(record: Record, box: Box) -> list[Line]:
    """Return this volunteer's stages and resources; the least important go first."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    facts = [*islice(status.place(now), 1), *status.work(now)]
    facts += [*status.machine(now), *(one for one in status.trust(now) if one[0] == "audits")]
    order = (
        "holds",
        "share",
        "time",
        "memory",
        "worker",
        "audits",
        "given",
        "limits",
        "running",
        "you are",
    )
    shown = [one for one in facts if one[0] in order]
    while len(shown) > box.height and len({label for label, _ in shown}) > 1:
        least = max(shown, key=lambda one: order.index(one[0]))[0]
        shown = [one for one in shown if one[0] != least]
    return status.lines_of(shown, box, LABELS)


def network(record: Record, box: Box) -> list[Line]:
    """Return transfer rates, totals and latencies."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    rates, cells = record.rates, max(8, min(60, box.width - 24))
    flows: list[tuple[str, float, list[float], Tone]] = [
        ("▲ sent", rates.sent, [traffic.sent for traffic in record.traffic], "second"),
        ("▼ received", rates.received, [traffic.received for traffic in record.traffic], "accent"),
    ]
    facts = [
        (label, line(f"{words.per_s(rate):>11} ", (spark(past, cells), tone)))
        for label, rate, past, tone in flows
    ]
    return status.lines_of([*facts, *status.network(now)], box, 11)


def events(record: Record, box: Box) -> list[Line]:
    """Return the newest events, the newest last."""
    told = [event for event in record.events if _is_news(event)]
    if not told:
        return [line(("nothing has happened yet", "muted"))]
    names = record.names
    return [cut(event_line(event, names), box.width) for event in told[-box.height :]]


def _is_news(event: EventView) -> bool:
    """Whether an event deserves a line beside the other panels."""
    if event.kind in QUIET or event.level == "debug":
        return False
    if event.topic == "matching" and event.level == "info":
        return event.data.get("decision") in ("hold", "place", "settled")  # the rest is theory
    # of microbatches only failures: most are backups for slow ones
    return event.topic != "pipeline" or event.kind != "LogLine" or event.level != "info"


def event_line(event: EventView, names: Mapping[str, str], topic: bool = False) -> Line:
    """Return one event as a line; ``names``: of members, by peer id."""
    tone = _LEVELS.get(event.level, "plain")
    mark = {"error": "✗", "warning": "!"}.get(event.level, " ")
    if event.kind == "RecoveryEvent" and event.data.get("phase") == "recovered":
        mark, tone = "✓", "good"
    return (
        Span(f"{words.clock(event.time)} ", "muted"),
        Span(f"{mark} ", tone),
        Span(f"{fit(clean(event.topic, 10), 10)} " if topic else "", "muted"),
        Span(clean(words.with_names(event.words, event.members, names)), tone),
    )


def _wrapped(text: str, box: Box, tone: Tone) -> list[Line]:
    return [line((part, tone)) for part in wrap(text, box.width, 3)]
