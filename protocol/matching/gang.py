"""The gang start: nothing is fetched before every stage is covered, and everybody is told when.

Reads the board; remembers what it has said.
"""

from __future__ import annotations

from protocol.effects import Explain
from protocol.ids import Stage
from protocol.matching.context import Context
from protocol.matching.effects import Effect, GangStart


class Gang:
    """Says once when the pipeline can run, and what it waits for while it cannot."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._started = False
        self._last_words = ""
        self._revision = -1

    @property
    def waits_for(self) -> str:
        """What the pipeline waits for, in words; empty while it can run."""
        return self._last_words

    def report(self, now: float) -> list[Effect]:
        """Look at the board if it changed since the last time."""
        board = self._context.board
        facts = board.facts(now)
        if board.revision == self._revision:
            return []
        self._revision = board.revision
        if facts.covered:
            return self._start(facts.covered)
        if facts.empty and facts.known_empty:
            self._started = False
            return self._wait_for(facts.empty)
        return []

    def _start(self, replicas: tuple[int, ...]) -> list[Effect]:
        if self._started:
            return []
        self._started, self._last_words = True, ""
        return [GangStart(replicas), Explain("matching", f"every stage is covered: {replicas}")]

    def _wait_for(self, uncovered: tuple[Stage, ...]) -> list[Effect]:
        count = len(uncovered)
        names = ", ".join(str(stage) for stage in uncovered)
        noun, stages = ("volunteer", "stage") if count == 1 else ("volunteers", "stages")
        verb = "has" if count == 1 else "have"
        words = f"waiting for {count} more {noun}: {stages} {names} {verb} none"
        if words == self._last_words:
            return []
        self._last_words = words
        return [Explain("matching", words, "warning")]
