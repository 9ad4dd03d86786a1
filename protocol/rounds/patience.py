"""The time a round may take before it is planned again, because messages may be lost with a link.

A round over a slow line takes as long as its bytes, and an abandoned round starts again with the
first byte. So the time counts from the last arrival, is a multiple of earlier rounds' durations,
and doubles with every failed attempt of a step.
"""

from __future__ import annotations

from typing import Final

ROUND_TIMEOUT_S: Final = 30.0
USUAL_TIMES: Final = 2.0
FORGET: Final = 0.7
"""Decay of a long round's weight with each shorter one."""
MOST_DOUBLINGS: Final = 5


class Patience:
    """The rounds that one replica leads. Times are monotonic seconds.

    Args:
        longest_s: a round's bytes take at most so long, on a line that is slow. It counts until a
            round is over.
    """

    def __init__(self, longest_s: float = 0.0) -> None:
        self._longest_s = longest_s
        self.planned_at = 0.0
        self._waited_s = 0.0
        self._moved_at = 0.0
        self._here = 0
        self._usual_s = 0.0
        self._in_vain = 0
        self._planned = False

    def start_step(self) -> None:
        """A new step: nothing of it is planned, and no attempt has come to nothing."""
        self._in_vain, self._planned = 0, False

    def planned(self, here: int, now: float) -> None:
        """A plan was made; ``here``: how much has come of the round."""
        self.planned_at = self._moved_at = now
        self._here, self._planned = here, True

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

    def decided(self, now: float) -> None:
        """The round is over; what it took is known if we have planned it, not another."""
        if self._planned:
            self._usual_s = max(now - self.planned_at, FORGET * self._usual_s)

    @property
    def _wait_s(self) -> float:
        usual_s = max(ROUND_TIMEOUT_S, USUAL_TIMES * self._usual_s or self._longest_s)
        return usual_s * (1 << min(self._in_vain, MOST_DOUBLINGS))

    @property
    def until(self) -> float:
        """When to look whether the plan is to be given up."""
        return self._moved_at + self._wait_s
