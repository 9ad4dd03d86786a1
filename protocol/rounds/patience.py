"""The time a round may take before it is planned again, because messages may be lost with a link.

A round over a slow line takes as long as its bytes, and an abandoned round starts again with the
first byte. So the time counts from the last arrival, is a multiple of earlier rounds' durations,
and doubles with every failed attempt of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.pace import FORGET_S

MOST_DOUBLINGS: Final = 5


class Patience:
    """The rounds that one replica leads. Times are monotonic seconds.

    Args:
        expected_s: returns how long a round may take here by those before (``Obstruction``).
    """

    def __init__(self, expected_s: Callable[[], float]) -> None:
        self._expected_s = expected_s
        self.planned_at = 0.0
        self._waited_s = 0.0
        self._moved_at = 0.0
        self._here = 0
        self._in_vain = 0

    def start_step(self) -> None:
        """A new step: no attempt of it has come to nothing."""
        self._in_vain = 0

    def planned(self, here: int, now: float) -> None:
        """A plan was made; ``here``: how much has come of the round."""
        self.planned_at = self._moved_at = now
        self._here = here

    def ran_out(self, here: int, now: float) -> bool:
        """Whether the plan is to be given up; call it again if it is not."""
        if now < self.until:
            return False
        if here != self._here:
            self._here, self._moved_at = here, now
            return False
        self._waited_s = self._wait_s
        self._in_vain += 1
        return True

    def words(self, step: int) -> str:
        """Say why the last plan was given up."""
        return f"step {step}: nothing came for {self._waited_s:.0f} s; planning it anew"

    @property
    def _wait_s(self) -> float:
        return max(FORGET_S, self._expected_s()) * (1 << min(self._in_vain, MOST_DOUBLINGS))

    @property
    def until(self) -> float:
        """When to look whether the plan is to be given up."""
        return self._moved_at + self._wait_s
