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
        "closes only this view; your machine goes on training, volunteer attach shows it again",
        "good",
    )
    now = record.snapshot
    last = bool(now and any(view.last for view in now.leaving))
    cover = _sentence(leaving_words(now.leaving if now else []))
    return [
        detach,
        Way(
            "f",
            "finish",
            "Finish",
            f"hands over, closes the step, saves, leaves in order; you can watch it. {cover}",
            "warn" if last else "plain",
        ),
        Way(
            "s",
            "stop",
            "Stop",
            "the same, but this view closes at once and it leaves in the background",
            "warn" if last else "plain",
        ),
    ]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
