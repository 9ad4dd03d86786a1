"""How a replica of stage 0 gets work: it asks the leader of its step for as much as it can take.

It keeps as many microbatches in flight as come back per second times the seconds that one is on its
way (Little's law; the product of bandwidth and delay in BBR, Cardwell et al. 2016), and a quarter
more, which is also how it grows. Nothing has to probe for the empty way, for every step begins with
an empty pipeline.

State: when each microbatch in flight began, the best figures of the newest steps, and what we have
asked for.
"""

import math
from collections import deque
from collections.abc import Set
from dataclasses import dataclass

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import PipelineEffect
from protocol.pipeline.next_hop import believed_rates
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.pipeline.timing import LEAST_S
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Lease, LeaseRequest

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


def usual_in_flight(view: SwarmView, place: Place) -> int:
    """Return our share, by speed, of the microbatches that occupy all replicas at once, and a
    quarter more."""
    first = view.serving(0)
    replicas = sum(len(view.serving(stage)) for stage in range(place.stages))
    together = max(place.stages * len(first), replicas)
    return math.ceil(SPARE * together * _share(first, place.me)) + 1


def _share(replicas: tuple[Replica, ...], me: PeerId) -> float:
    """Return our share of a stage's speed; equal shares until all speeds are known."""
    rates = believed_rates({replica.peer: replica.rate for replica in replicas})
    return rates[me] / sum(rates.values()) if me in rates else 1 / max(1, len(replicas))


class Leasing:
    """The work of one seat, which its ``pipeline`` holds; idle at stages other than the first."""

    def __init__(self, place: Place, pipeline: Pipeline) -> None:
        self._place, self._pipeline, self._flight = place, pipeline, Flight()
        self._asked: tuple[PeerId, int] | None = None
        """Whom we have asked, and for how many."""
        self._asked_at = 0.0
        self._leader: PeerId | None = None
        """Whom we have asked last in this step: nobody else's leases count."""

    def start_step(self) -> None:
        """Begin a step."""
        self._asked = self._leader = None
        self._flight.start_step()

    def on_lease(self, sender: PeerId, message: Lease, now: float) -> list[PipelineEffect]:
        """Compute what is leased to us."""
        if message.step != self._pipeline.step or sender != self._leader:
            return []
        if self._asked is not None:
            self._flight.leased(now - self._asked_at)
        self._asked = None
        return self._pipeline.lease(message.ids, again=message.again, now=now)

    def observe(self, now: float) -> None:
        """Measure what is in flight."""
        self._flight.observe(self._pipeline.in_flight(), self._pipeline.done(), now)

    def in_flight_cap(self, view: SwarmView) -> int:
        """Return the microbatches that we keep in flight: as many as are busy somewhere; more, up
        to the whole step, where lines are so long that those do not keep all replicas busy."""
        return max(
            usual_in_flight(view, self._place), min(self._flight.depth(), self._place.per_step)
        )

    def ask(self, leader: PeerId, view: SwarmView, now: float) -> list[Send]:
        """Ask for as much as we can take, unless we have asked for exactly that already."""
        busy = len(self._pipeline.in_flight())
        want = self.in_flight_cap(view) - busy
        if want <= 0 or self._asked == (leader, want):
            return []
        if self._asked is None:
            self._asked_at = now
        self._asked, self._leader = (leader, want), leader
        held = busy + len(self._pipeline.done())
        return [Send(leader, LeaseRequest(self._pipeline.step, want, held))]
