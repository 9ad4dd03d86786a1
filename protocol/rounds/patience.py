"""The time a round may take before it is planned again, because messages may be lost with a link.

A round over a slow line takes as long as its bytes, and an abandoned round starts again with the
first byte. So the time counts from the last arrival, is a multiple of earlier rounds' durations,
and doubles with every failed attempt of a step.

A leader that was asleep or cut off is lost to the others meanwhile, and they take nothing from it:
what it sent then has to be sent again. If nothing comes after such a break for as long as a usual
round takes, and at least for as long as a replica looks around, it gives its plan up early. That
does not count as a failed attempt.
"""

from __future__ import annotations

from typing import Final

from protocol.rounds.quorum import LOOK_AROUND_S

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
        self._broke_at = 0.0
        """When the last break was over; not before the plan."""
        self._here_then: int | None = None
        """How much had come of the round by then, until that is looked at."""

    def start_step(self) -> None:
        """A new step: nothing of it is planned, and no attempt has come to nothing."""
        self._in_vain, self._planned = 0, False

    def planned(self, here: int, now: float) -> None:
        """A plan was made; ``here``: how much has come of the round."""
        self.planned_at = self._moved_at = now
        self._here, self._planned = here, True
        self._broke_at, self._here_then = now, None

    def unbroken(self, since: float, here: int) -> None:
        """Note since when we have been awake and in touch; ``here``: how much of the round has
        come."""
        if since > self._broke_at:
            self._broke_at, self._here_then = since, here

    def ran_out(self, here: int, now: float) -> bool:
        """Whether the plan is to be given up; call it again if it is not."""
        if self._here_then is not None and now >= self._mended_by:
            then, self._here_then = self._here_then, None
            if here == then:
                self._waited_s = now - self._broke_at
                return True
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
    def _mended_by(self) -> float:
        """When to look whether anything has come since the break."""
        usual_s = self._usual_s or ROUND_TIMEOUT_S
        return self._broke_at + max(LOOK_AROUND_S, usual_s)

    @property
    def until(self) -> float:
        """When to look whether the plan is to be given up."""
        usual = self._moved_at + self._wait_s
        return usual if self._here_then is None else min(usual, self._mended_by)
