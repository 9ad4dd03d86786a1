"""The costs and consequences of each way of leaving, for the quit dialog. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from client.ui.gone import UNKNOWN, next_step
from client.ui.source.news import Link
from client.views.record import Record
from client.views.span import Tone
from client.views.status import drain_words
from client.views.text import clean


@dataclass(frozen=True, slots=True)
class Way:
    """One way of leaving."""

    key: str
    name: str
    title: str
    cost: str
    tone: Tone


STAYS = {
    "training": "your machine keeps training",
    "done": "it stays and serves the finished model",
    "paused": "it stays paused in the background",
}
"""The node's activity after only the view is closed."""


def ways(record: Record, link: Link) -> list[Way]:
    """Return the ways in the order of their costs.

    The view of a node that does not answer, or drains, can only be closed.
    """
    now = record.snapshot
    if link.state != "live" or now is None or now.state == "stopping":
        return [Way("d", "detach", "Close", _when_closed(record, link), "plain")]
    stays = STAYS.get(now.state, "it continues in the background")
    detach = Way(
        "d",
        "detach",
        "Detach",
        f"closes only this view; {stays}; volunteer attach shows it again",
        "good",
    )
    kept, tone = drain_words(now)
    how = "leaves the swarm."
    if now.leaving:
        how = "drains its stages: finishes the step, saves, leaves; you can watch it."
    return [detach, Way("f", "finish", "Finish", f"{how} {_sentence(kept)}", tone)]


def farewell(record: Record, link: Link, leaving: bool) -> str:
    """Return the state of the node after its view was closed, for the terminal.

    Args:
        leaving: whether it was told to leave from here.
    """
    if link.state == "ended":
        why = clean(link.ending.words) if link.ending is not None else clean(link.words)
        return f"it has ended: {why}; {next_step(link)}"
    if link.state != "live":
        return f"it does not answer; {UNKNOWN}"
    if leaving or (record.snapshot is not None and record.snapshot.state == "stopping"):
        return "it drains its stages, saves and leaves, in the background"
    return "it continues; volunteer attach shows it again"


def _when_closed(record: Record, link: Link) -> str:
    if link.state == "ended":
        words = "closes this view; the volunteer has ended, nothing runs. "
        return words + _sentence(next_step(link))
    if link.state == "live" and record.snapshot is not None:
        return "closes only this view; the volunteer drains its stages in the background"
    return f"closes only this view; the volunteer does not answer: {UNKNOWN}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
