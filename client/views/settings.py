"""The Settings tab: the owner's limits, and every setting with its origin. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from client.control.snapshot import LimitsView
from client.views import words
from client.views.plot import bar
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
from client.views.text import clean


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of this machine's volunteer."""

    name: str
    value: str
    origin: str
    """A flag, a variable's name, a file's path, ``default``."""
    empty: bool = False
    """Whether ``value`` only stands for no value."""


def limits(record: Record, box: Box) -> list[Line]:
    """Return the running volunteer's limits and their use."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    found = now.limits
    used = now.rss_bytes + sum(worker.rss_bytes for worker in now.workers or [now.worker])
    rates = record.rates
    wide = box.width >= 70
    lines = [
        pair("threads", _threads(found), labels=13),
        _use("memory", used, found.memory_bytes, words.size, wide),
        _use("upload", rates.sent, found.upload_bytes_per_s, words.per_s, wide),
        _use("download", rates.received, found.download_bytes_per_s, words.per_s, wide),
        _use("today", found.used_bytes, found.daily_bytes, words.size, wide),
        pair("GPU", _gpu(found), labels=13),
        pair("computes", ", ".join(clean(w, 40) for w in found.when) or "at any time", labels=13),
    ]
    return [cut(one, box.width) for one in lines[: box.height]]


def _threads(found: LimitsView) -> str:
    threads = str(found.threads or found.threads_now or "all cores")
    part = found.compute_share
    return f"{threads}, {part} % of the time" if 0 < part < 100 else threads


def _gpu(found: LimitsView) -> str:
    memory = f"{found.vram_share} % of its memory" if 0 < found.vram_share < 100 else ""
    return memory or "no limit"


def settings_table(settings: Sequence[Setting], box: Box, text: str = "") -> tuple[Line, list[Row]]:
    """Return head and rows; those that differ from the defaults stand out."""
    wanted = text.lower().split()
    shown = [one for one in settings if all(part in f"{one.name} {one.origin}" for part in wanted)]
    value = max(8, min(30, box.width - 56))
    columns = [
        Column("setting", 30),
        Column("value", value),
        Column("from", max(8, box.width - 34 - value)),
    ]
    rows = [Row(one.name, (cells_of(columns, _cells(one)),)) for one in shown]
    return head_of(columns), rows or [Row("none", (line(("no such setting", "muted")),))]


LATER = "it takes effect when the volunteer starts again"


def how_to_change(one: Setting) -> list[str]:
    """Describe how to change a setting where this view cannot."""
    return [f"volunteer config set {one.name} VALUE", f"writes it to your settings; {LATER}"]


def what_it_does(one: Setting) -> list[str]:
    """Describe the effect of changing a setting here."""
    return [f"Enter writes it to your settings; {LATER}. Esc leaves it.", f"now from: {one.origin}"]


def _cells(one: Setting) -> list[Span]:
    own = one.origin != "default"
    value: Tone = "strong" if own else "plain"
    return [
        Span(clean(one.name, 60), "plain"),
        Span(clean(one.value, 200), value),
        Span(clean(one.origin, 200), "accent" if own else "muted"),
    ]


def _use(label: str, used: float, limit: int, show: Callable[[float], str], wide: bool) -> Line:
    if not limit:
        return pair(label, line(f"{show(used):>11}", ("  no limit", "muted")), labels=13)
    tone: Tone = "warn" if used > 0.9 * limit else "accent"
    gauge = (Span(bar(used / limit, 20) + "▏", tone),) if wide else ()
    return pair(
        label, (*line(f"{show(used):>11}  "), *gauge, Span(f" of {show(limit)}")), labels=13
    )
