"""Tells peers something while they need it: at once, and again because messages are lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

AGAIN_S: Final = 0.75
"""After which what was told is told again: it may have been lost."""

To = TypeVar("To")


class Telling(Generic[To]):
    """Holds what each was told last, and when it is told next."""

    def __init__(self) -> None:
        self._told: dict[To, tuple[object, float]] = {}

    def due(self, to: Iterable[To], news: object, now: float, within_s: float = 0.0) -> list[To]:
        """Return who is told the news now, and take it for told; who is not named is forgotten.

        Args:
            to: all that need it.
            news: what they are told.
            now: monotonic seconds.
            within_s: who was told something else before is told the news within this time.
        """
        known = {one: self._told.get(one, (news, now)) for one in to}
        due = {
            one: (old, at if old == news else min(at, now + within_s))
            for one, (old, at) in known.items()
        }
        told = [one for one, (_, at) in due.items() if at <= now]
        self._told = due | dict.fromkeys(told, (news, now + AGAIN_S))
        return told

    def next_deadline(self) -> float | None:
        """Return when ``due`` names somebody though nothing has changed."""
        return min((at for _, at in self._told.values()), default=None)
