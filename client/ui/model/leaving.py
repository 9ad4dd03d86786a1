"""What each way of going costs, for the quit dialog. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from client.ui.model.header import leaving_words
from client.ui.model.record import Record
from client.ui.model.span import Tone


@dataclass(frozen=True, slots=True)
class Way:
    """One way of going."""

    key: str
    name: str
    title: str
    cost: str
    tone: Tone


def ways(record: Record, live: bool) -> list[Way]:
    """Return the ways in the order of what they cost; a recording can only be closed."""
    if not live:
        return [Way("d", "detach", "Close", "this is a recording: nothing changes", "good")]
    detach = Way(
        "d",
        "detach",
        "Detach",
        "closes only this view; your machine goes on training. volunteer attach brings it back",
        "good",
    )
    now = record.snapshot
    last = bool(now and any(view.last for view in now.leaving))
    cover = leaving_words(now.leaving if now else [])
    return [
        detach,
        Way(
            "f",
            "finish",
            "Finish",
            f"hands over, closes the step, saves, then leaves in order. {_sentence(cover)}",
            "warn" if last else "plain",
        ),
        Way(
            "s",
            "stop",
            "Stop",
            "saves what it holds and leaves at once; others do again what was under way. "
            + _sentence(cover),
            "warn",
        ),
    ]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
