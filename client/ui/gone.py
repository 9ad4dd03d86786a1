"""The message while no node answers: its end or silence, the reason, and what to do. Pure."""

from client.ui.source.news import Link
from client.views import words
from client.views.record import Record
from client.views.span import Box, Line, Tone, line
from client.views.text import clean, wrap

MAX_LINES = 4
"""Lines of one sentence."""


def is_gone(link: Link) -> bool:
    """Whether no node answers, so that everything shown is out of date."""
    return link.state in ("lost", "ended")


def gone(record: Record, link: Link, box: Box) -> list[Line]:
    """Return why no node answers and what to do; empty while one does."""
    if not is_gone(link):
        return []
    lines = [*_wrapped(link.why, "plain", box), *_wrapped(link.next_step, "strong", box)]
    if record.snapshot is not None:
        below = f"below: the state at {words.clock(record.time)}"
        lines += _wrapped(f"{below}; shown again as soon as it answers", "muted", box)
    return lines


def _wrapped(text: str, tone: Tone, box: Box) -> list[Line]:
    return [line((part, tone)) for part in wrap(clean(text), box.width, MAX_LINES)]
