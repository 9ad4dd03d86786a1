"""The message while no node answers: its end or silence, the reason, and what to do. Pure."""

from client.ui.source.news import Link
from client.views import words
from client.views.record import Record
from client.views.span import Box, Line, Tone, line
from client.views.text import clean, wrap

MAX_LINES = 4
"""Lines of one sentence."""
UNKNOWN = "it may be busy, or have ended: run volunteer status"


def is_gone(link: Link) -> bool:
    """Whether no node answers, so that everything shown is out of date."""
    return link.state in ("lost", "ended")


def gone(record: Record, link: Link, box: Box) -> list[Line]:
    """Return why no node answers and what to do; empty while one does."""
    if not is_gone(link):
        return []
    lines = [*_wrapped(_why(link), "plain", box), *_wrapped(next_step(link), "strong", box)]
    if record.snapshot is not None:
        below = f"below: the state at {words.clock(record.time)}"
        lines += _wrapped(f"{below}; shown again as soon as it answers", "muted", box)
    return lines


def headline(link: Link) -> str:
    """Return a short description of its end."""
    if link.ending is None:
        return link.words
    code = link.ending.exit_code
    if code is None:
        return f"without a word; last seen at {words.clock(link.ending.time)}"
    how = f", exit code {code}" if code else ""
    return f"at {words.clock(link.ending.time)}{how}"


def next_step(link: Link) -> str:
    """Return what to do, and how to start the volunteer again."""
    if link.ending is not None:
        return clean(link.ending.next_step)
    return "start it again: volunteer join" if link.state == "ended" else UNKNOWN


def _why(link: Link) -> str:
    if link.ending is not None:
        return clean(link.ending.words)
    return clean(link.words) if link.state == "ended" else "the volunteer does not answer"


def _wrapped(text: str, tone: Tone, box: Box) -> list[Line]:
    return [line((part, tone)) for part in wrap(text, box.width, MAX_LINES)]
