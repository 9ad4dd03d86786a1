"""What finishing costs, and what is said while no node answers and after the view. Pure."""

from dataclasses import dataclass

from client.ui.source.news import UNKNOWN, Link
from client.views import words
from client.views.record import Record
from client.views.span import Box, Line, Tone, line
from client.views.status import drain_words
from client.views.text import clean, wrap

MAX_LINES = 4
"""Lines of one sentence."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What becomes of the stages."""

    words: str
    tone: Tone
    possible: bool = True
    """False: there is nothing to finish."""


def finishing(record: Record, link: Link) -> Cost:
    """Return what finishing now would cost, or why it is not possible."""
    now = record.snapshot
    if link.state != "live" or now is None or now.state == "stopping":
        return Cost(_sentence(farewell(record, link, leaving=False)), "plain", possible=False)
    kept, tone = drain_words(now)
    how = "It leaves the swarm."
    if any(seat.staying is not None for seat in now.seats):
        how = "It drains its stages: finishes the step, saves, leaves; you can watch it."
    return Cost(f"{how} {_sentence(kept)}", tone)


def farewell(record: Record, link: Link, leaving: bool) -> str:
    """Return the state of the node after its view was closed, for the terminal.

    Args:
        leaving: whether it was told to leave from here.
    """
    if link.state == "ended":
        return clean(f"it has ended: {link.why}; {link.next_step}")
    if link.state != "live":
        return f"it does not answer; {UNKNOWN}"
    if leaving or (record.snapshot is not None and record.snapshot.state == "stopping"):
        return "it drains its stages, saves and leaves, in the background"
    return "it continues; volunteer attach shows it again, volunteer finish ends it"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def gone(record: Record, link: Link, box: Box) -> list[Line]:
    """Return why no node answers and what to do; empty while one does."""
    if not link.gone:
        return []
    lines = [*_wrapped(link.why, "plain", box), *_wrapped(link.next_step, "strong", box)]
    if record.snapshot is not None:
        below = f"below: the state at {words.clock(record.time)}"
        lines += _wrapped(f"{below}; shown again as soon as it answers", "muted", box)
    return lines


def _wrapped(text: str, tone: Tone, box: Box) -> list[Line]:
    return [line((part, tone)) for part in wrap(clean(text), box.width, MAX_LINES)]
