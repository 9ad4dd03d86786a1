"""A report to paste into a question: no addresses, no paths, no secrets. Pure."""

from __future__ import annotations

import platform

from msgspec import structs

from client.redaction import Redactor
from client.views import status, words
from client.views.record import Record
from client.views.recovery import summary
from client.views.report import UNCUT, stages_report
from client.views.span import plain
from client.views.text import clean

EVENTS = 30
PRIVATE = ("for", "you are", "sample", "address")
"""Facts that are the owner's own."""


def report(record: Record, link: str) -> str:
    """Return the report."""
    return Redactor().clean("\n".join(_lines(record, clean(link))) + "\n")


def _lines(record: Record, link: str) -> list[str]:
    """Return the report's lines with everything in them."""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if record.snapshot is None:
        return ["volunteer diagnostics", f"system: {system}", f"connection: {link}; no answer yet"]
    now = structs.replace(record.snapshot, names={}, swarm_name="of this id")
    facts = [one for one in status.everything(now) if one[0] not in PRIVATE]
    return [
        "volunteer diagnostics",
        f"version: {clean(now.version)}; {system}",
        f"time: {words.date(record.time)}",
        f"connection: {link}",
        f"volunteer: …{words.short(now.peer)}",
        plain(status.lines_of(facts, UNCUT)),
        f"faults: {summary(record.incidents)}",
        stages_report(now, record.matches),
        f"last {EVENTS} events:",
        *(
            f"  {words.clock(e.time)} {e.level} {clean(e.topic)}: {clean(e.words)}"
            for e in list(record.events)[-EVENTS:]
        ),
    ]
