"""A report to paste into a question: no addresses, no paths, no secrets. Pure."""

from __future__ import annotations

import platform

from client.redaction import Redactor
from client.ui.header import drain_words
from client.views import words
from client.views.record import Record
from client.views.recovery import summary
from client.views.text import clean

EVENTS = 30


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{clean(why)} {count}" for why, count in counts.items()) or "none"


def report(record: Record, link: str) -> str:
    """Return the report."""
    return Redactor().clean("\n".join(_lines(record, clean(link))) + "\n")


def _lines(record: Record, link: str) -> list[str]:
    """Return the report's lines with everything in them."""
    now = record.snapshot
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if now is None:
        return ["volunteer diagnostics", f"system: {system}", f"connection: {link}; no answer yet"]
    count, network = now.counters, now.network
    traffic = (
        f"{words.size(network.sent_bytes)} sent, {words.size(network.received_bytes)} received"
    )
    return [
        "volunteer diagnostics",
        f"version: {clean(now.version)}; {system}",
        f"time: {words.date(record.time)}; up {words.duration(now.uptime_s)}",
        f"connection: {link}",
        f"swarm: {clean(now.swarm[:16])}, {len(now.stages)} stages, step {now.step} of {now.steps}",
        f"volunteer: …{words.short(now.peer)}",
        f"state: {clean(now.state)}: {clean(now.reason)}",
        "seats: " + (", ".join(f"stage {s.stage} {clean(s.state)}" for s in now.seats) or "none"),
        "if it leaves: " + drain_words(now.leaving, done=now.state == "done"),
        f"loss: {now.loss}; {now.tokens_per_s:.0f} tokens/s, {now.own_tokens_per_s:.0f} here",
        f"memory: node {words.size(now.rss_bytes)}, "
        + ", ".join(f"worker {w.state} {words.size(w.rss_bytes)}" for w in now.workers),
        f"network: {len(now.peers)} peers, {network.links} links, {traffic}",
        f"reached: {clean(now.reach.state)}, ports {clean(now.reach.port_mapping)}",
        f"counted: {count.rounds_committed} rounds, {count.rounds_restarted} restarted, "
        f"{count.rerouted_microbatches} rerouted, {count.lost_microbatches} replayed, "
        f"{count.doubled_microbatches} doubled, {count.refused_frames} refused",
        f"made anew as leader: {_reasons(count.restarts_led)}",
        f"refused: {_reasons(count.refused_by_reason)}",
        f"recovery: {summary(record.incidents)}",
        f"last error: {clean(now.last_error or 'none')}",
        "stages:",
        *(
            f"  {stage.stage}: version {stage.version}, "
            + (
                ", ".join(f"…{words.short(r.peer)} {clean(r.state)}" for r in stage.replicas)
                or "nobody"
            )
            for stage in now.stages
        ),
        f"last {EVENTS} events:",
        *(
            f"  {words.clock(e.time)} {e.level} {clean(e.topic)}: {clean(e.words)}"
            for e in list(record.events)[-EVENTS:]
        ),
    ]
