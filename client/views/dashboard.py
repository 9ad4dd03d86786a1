"""The panels of the Dashboard: loss, this machine, network, peers, events. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from client.control.names import with_names
from client.control.snapshot import EventView, Snapshot, WorkerView
from client.quantities import plural
from client.views import words
from client.views.plot import bar, curve, spark
from client.views.record import Record
from client.views.span import Box, Line, Span, Tone, cut, line, pair, spread
from client.views.text import clean, fit, wrap

QUIET = ("StepCommitted", "VersionEvaluated", "StageClosed", "StageAssigned")
"""Kinds of events that other panels show better."""
LABELS = 8
_LEVELS: dict[str, Tone] = {"error": "bad", "warning": "warn", "info": "plain", "debug": "muted"}


def loss(record: Record, box: Box) -> list[Line]:
    """Return the loss curve with its figures above it."""
    points = [(float(point.step), point.loss) for point in record.curve()]
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
    faults = [incident for incident in record.incidents.newest_first if not incident.in_order]
    marks: list[tuple[float, Tone]] = [
        (min(float(found.step), points[-1][0]), "bad" if found.open else "warn") for found in faults
    ]
    legend = line(("▲", "warn"), (" fault ", "muted")) if marks else ()
    head = [spread(cut(figures, box.width), legend, box.width), *_held_out(record, box)]
    told = [(float(point.version), point.loss) for point in record.held_out_curve()]
    return head + curve(points, Box(box.width, box.height - len(head)), marks, over=told)


def _held_out(record: Record, box: Box) -> list[Line]:
    """Return what is known of held-out text, in one line; nothing where that is nothing."""
    known = record.snapshot.held_out if record.snapshot else None
    if known is None:
        return []
    told = ""
    if known.claims == 1:
        told = "one member's claim, "
    elif known.claims > known.vouchers:
        told = f"told by {known.vouchers} of {known.claims}, "
    shown = line(
        (f"{known.loss:.3f}", "second"),
        (" held out at ", "muted"),
        f"{words.count(known.version)}",
        (f", {told}", "muted"),
        f"{known.bits_per_byte:.3f}",
        (" bits/byte", "muted"),
        (f" of {words.count(known.tokens)} tokens" if box.width >= 60 else "", "muted"),
    )
    return [cut(shown, box.width)]


def machine(record: Record, box: Box) -> list[Line]:
    """Return this volunteer's stages and resources."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    lines = [
        pair("you are", words.named(now.peer, now.names), "key", LABELS),
        *_seats(now),
        pair(
            "speed",
            line(f"{words.count(now.own_tokens_per_s)}", (" tokens/s", "muted")),
            labels=LABELS,
        ),
        pair("share", _share(now), labels=LABELS),
        pair("memory", _memory(now, box.width >= 40), labels=LABELS),
        pair("compute", _worker(now), labels=LABELS),
        pair("done", _credit(now), labels=LABELS),
        *_audits(now, wide=box.width >= 40),
        pair("running", words.duration(now.uptime_s), labels=LABELS),
        pair("lends", limits_words(now), labels=LABELS),
    ]
    if box.height < len(lines):  # in the order in which parts are dropped first
        for label in ("running", "lends", "you are", "done", "audits"):
            if len(lines) > box.height:
                lines = [found for found in lines if found[0].text.strip() != label]
    return [cut(found, box.width) for found in lines[: box.height]]


def network(record: Record, box: Box) -> list[Line]:
    """Return transfer rates, totals and latencies."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    rates, cells = record.rates, max(8, min(60, box.width - 24))
    trips = [peer.rtt_ms for peer in now.peers if peer.rtt_ms is not None]
    trip = "not measured yet"
    if trips:
        trip = f"{statistics.median(trips):.0f} ms median, {max(trips):.0f} ms maximum"
    out = [traffic.sent for traffic in record.traffic]
    into = [traffic.received for traffic in record.traffic]
    sent, received = words.size(now.network.sent_bytes), words.size(now.network.received_bytes)
    known = plural(len(now.peers), "known peer")
    lines = [
        _flow("▲ sent", rates.sent, spark(out, cells), "second"),
        _flow("▼ received", rates.received, spark(into, cells), "accent"),
        pair("in all", f"{sent} sent, {received} received", labels=11),
        pair("round trip", trip, labels=11),
        pair("links", f"{now.network.links} of {known}", labels=11),
        pair("refused", f"{words.count(now.counters.refused_frames)} frames", labels=11),
        *(pair("reached", clean(found), labels=11) for found in _reached(now)),
        *([pair("changed", clean(now.reach.change), labels=11)] if now.reach.change else []),
        *(pair("address", clean(address), labels=11) for address in now.addresses[:2]),
    ]
    return [cut(found, box.width) for found in lines[: box.height]]


def _reached(now: Snapshot) -> list[str]:
    """Return how others reach us, if that is known and not only a matter of this machine."""
    through = " and ".join(map(words.short, now.relay.through))
    known = now.reach.state not in ("unknown", "local")
    found = [now.reach.words, now.reach.next_step] if known else []
    return [each for each in (f"relayed through {through}" if through else "", *found) if each]


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
        Span(clean(with_names(event.words, event.members, names)), tone),
    )


def limits_words(now: Snapshot) -> str:
    """Describe the owner's limits in short."""
    limits = now.limits
    found = [
        plural(limits.threads, "thread") if limits.threads else "",
        f"{limits.compute_share} % of the time" if 0 < limits.compute_share < 100 else "",
        f"{words.size(limits.memory_bytes)} RAM" if limits.memory_bytes else "",
        f"▲ {words.per_s(limits.upload_bytes_per_s)}" if limits.upload_bytes_per_s else "",
        f"▼ {words.per_s(limits.download_bytes_per_s)}" if limits.download_bytes_per_s else "",
        f"{words.size(limits.daily_bytes)}/day" if limits.daily_bytes else "",
        f"{limits.vram_share} % of the GPU's memory" if 0 < limits.vram_share < 100 else "",
        f"{limits.power_w} W" if limits.power_w else "",
        *(clean(word, 40) for word in limits.when[:4]),
    ]
    return ", ".join(filter(None, found)) or "no limits set"


def _flow(label: str, rate: float, bars: str, tone: Tone) -> Line:
    return pair(label, line(f"{words.per_s(rate):>11} ", (bars, tone)), labels=11)


def _seats(now: Snapshot) -> list[Line]:
    if not now.seats:
        return [pair("holds", "no stage yet", "muted", LABELS)]
    lines = []
    for number, seat in enumerate(sorted(now.seats, key=lambda seat: seat.seat)[:4]):
        tone: Tone = "good" if seat.state == "serving" else "accent"
        place = "" if seat.seat == 0 else " (also)"
        shown = line((f"stage {seat.stage} ", "strong"), (seat.state, tone), (place, "muted"))
        lines.append(pair("holds" if number == 0 else "", shown, labels=LABELS))
    return lines


def _share(now: Snapshot) -> Line:
    if now.tokens_per_s <= 0:
        return line(("none yet", "muted"))
    part = 100 * now.own_tokens_per_s / now.tokens_per_s
    return line(f"{part:.0f} %", (" of all work", "muted"))


def _memory(now: Snapshot, wide: bool) -> Line:
    used = now.rss_bytes + sum(worker.rss_bytes for worker in now.workers or [now.worker])
    limit = now.limits.memory_bytes
    if limit:
        share = used / limit
        tone: Tone = "warn" if share > 0.9 else "accent"
        gauge = line((bar(share, 8), tone), " ") if wide else ()
        return line(f"{words.size(used)} ", *gauge, (f"of {words.size(limit)}", "muted"))
    return line(words.size(used))


def _worker(now: Snapshot) -> Line:
    workers = now.workers or [now.worker]
    running = sum(worker.state == "running" for worker in workers)
    restarts = sum(worker.restarts for worker in workers)
    tone: Tone = "good" if running == len(workers) else "warn"
    state = plural(running, "worker") if running else clean(workers[0].state)
    again = f", restarted {restarts}x" if restarts else ""
    return line((state, tone), (again, "warn"), *_utilization(workers))


def _utilization(workers: list[WorkerView]) -> list[tuple[str, Tone]]:
    """Return what the workers make of their devices together, once they have computed."""
    shares = [worker.mfu for worker in workers if worker.mfu is not None]
    if not shares:
        return []
    return [(", ", "muted"), (f"{100 * sum(shares):.0f} %", "plain"), (" MFU", "muted")]


def _credit(now: Snapshot) -> Line:
    credit = now.credit
    if not credit.microbatches:
        return line(
            (f"{words.count(now.counters.rounds_committed)}", "plain"), (" rounds", "muted")
        )
    return line(
        f"{words.count(credit.microbatches)}", (" microbatches, ", "muted"),
        f"{words.count(credit.tokens)}", (" tokens", "muted"),
    )  # fmt: skip


def _audits(now: Snapshot, *, wide: bool) -> list[Line]:
    """Return today's audits; nothing in a run without."""
    if now.audits is None:
        return []
    today = now.audits.today
    of = f"{words.count(today.drawn)} of {words.count(now.audits.contributions_today)}"
    tone: Tone = "bad" if today.disagree else "good" if today.drawn else "muted"
    found = "all agree" if today.agree == today.drawn else f"{words.count(today.agree)} agree"
    if today.disagree:
        found = f"{words.count(today.disagree)} {'differs' if today.disagree == 1 else 'differ'}"
    result = (f", {found}" if today.drawn else "", tone)
    return [pair("audits", line(of, result, (" today" if wide else "", "muted")), labels=LABELS)]


def _wrapped(text: str, box: Box, tone: Tone) -> list[Line]:
    return [line((part, tone)) for part in wrap(text, box.width, 3)]
