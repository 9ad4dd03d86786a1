"""How many microbatches a replica of the first stage keeps in flight, from what it measures.

As many as come back per second times the seconds that one is on its way (Little's law; the product
of bandwidth and delay in BBR, Cardwell et al. 2016), and a quarter more, which is also how it
grows. Nothing has to probe for the empty way, for every step begins with an empty pipeline.

State: when each microbatch in flight began, and the best figures of the newest steps. It may not
decide who works on what.
"""

import math
from collections import deque
from collections.abc import Set
from dataclasses import dataclass

from protocol.pipeline.timing import LEAST_S

SPARE = 1.25
"""In flight beyond what fills the way: a quarter more."""
STEPS = 3
"""Steps whose figures count; what has become slower since is noticed after so many."""


@dataclass(slots=True)
class _Best:
    """The best of one step: seconds and microbatches per second."""

    way_s: float = math.inf
    asked_s: float = math.inf
    rate: float = 0.0


class Flight:
    """Ways and rates of our own microbatches. ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        self._began: dict[int, tuple[float, int]] = {}
        """By microbatch in flight: when it began, and how many had ended then."""
        self._ended = 0
        self._steps = deque([_Best()], STEPS)

    def start_step(self) -> None:
        """Begin a step: what was measured stays for a few of them."""
        if self._steps[-1].rate:
            self._steps.append(_Best())

    def observe(self, in_flight: Set[int], done: Set[int], now: float) -> None:
        """Take the ids of the microbatches that are ``in_flight`` and of those that are counted."""
        for microbatch in [m for m in self._began if m not in in_flight]:
            at, ended_then = self._began.pop(microbatch)
            if microbatch in done:
                self._ended += 1
                way_s, best = max(now - at, LEAST_S), self._steps[-1]
                best.way_s = min(best.way_s, way_s)
                best.rate = max(best.rate, (self._ended - ended_then) / way_s)
        for microbatch in in_flight - self._began.keys():
            self._began[microbatch] = now, self._ended

    def leased(self, seconds: float) -> None:
        """Note how long it took to be given work after asking for it."""
        best = self._steps[-1]
        best.asked_s = min(best.asked_s, seconds)

    def depth(self) -> int:
        """Return how many keep the way full; 0 while its length or rate is not known."""
        rate, way_s = max(best.rate for best in self._steps), min(b.way_s for b in self._steps)
        if not rate:
            return 0
        asked_s = min(best.asked_s for best in self._steps)
        if asked_s < math.inf:
            way_s += asked_s
        return math.ceil(SPARE * rate * way_s - 1e-9)
