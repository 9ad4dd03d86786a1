"""A report to paste into a question: no addresses, no paths, no secrets. Pure."""

from __future__ import annotations

import platform
import re

from client.ui.model import words
from client.ui.model.header import drain_words
from client.ui.model.record import Record
from client.ui.model.recovery import summary
from client.ui.text import clean

_ADDRESS = re.compile(
    r"/(?:ip4|ip6|dns|dns4|dns6|dnsaddr)/[^\s/]+(?:/(?:tcp|udp)/\d+)?"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}(?![\w:])"
)
_PEER = re.compile(r"\b12D3KooW[1-9A-HJ-NP-Za-km-z]{20,60}\b")
_PATH = re.compile(
    r"(?<![\w/])(?:~|/(?:home|Users|root|tmp|var|run|etc|opt|mnt|data|private))/[^\s'\":,;]*"
)
_SECRET = re.compile(r"(?i)\b(secret|token|password|key)\b\s*[=:]\s*\S+|volunteer:[0-9a-f]{16,}\S*")
EVENTS = 30


def redacted(text: str) -> str:
    """Return cleaned text without addresses, paths, secrets; peer ids shortened."""
    text = _SECRET.sub("(secret)", clean(text))
    text = _ADDRESS.sub("(address)", text)
    text = _PATH.sub("(path)", text)
    return _PEER.sub(lambda found: "…" + found.group()[-6:], text)


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{clean(why)} {count}" for why, count in counts.items()) or "none"


def report(record: Record, link: str) -> str:
    """Return the report."""
    now = record.snapshot
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if now is None:
        return (
            f"volunteer diagnostics\nsystem: {system}\nconnection: {redacted(link)}; no answer yet"
        )
    count, network = now.counters, now.network
    traffic = (
        f"{words.size(network.sent_bytes)} sent, {words.size(network.received_bytes)} received"
    )
    lines = [
        "volunteer diagnostics",
        f"version: {clean(now.version)}; {system}",
        f"time: {words.date(record.time)}; up {words.duration(now.uptime_s)}",
        f"connection: {redacted(link)}",
        f"swarm: {clean(now.swarm[:16])}, {len(now.stages)} stages, step {now.step} of {now.steps}",
        f"volunteer: …{words.short(now.peer)}",
        f"state: {clean(now.state)}: {redacted(now.reason)}",
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
        f"last error: {redacted(now.last_error or 'none')}",
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
            f"  {words.clock(e.time)} {e.level} {clean(e.topic)}: {redacted(e.words)}"
            for e in list(record.events)[-EVENTS:]
        ),
    ]
    return "\n".join(lines) + "\n"
