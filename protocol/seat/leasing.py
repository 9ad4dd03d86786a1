"""How a replica of stage 0 gets work: it asks the leader of its step for as much as it can take."""

import math

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import PipelineEffect
from protocol.pipeline.next_hop import believed_rates
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.seat.flight import SPARE, Flight
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Lease, LeaseRequest


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
    """The work of one seat; idle at stages other than the first.

    Args:
        place: where this replica stands.
        pipeline: which holds what was leased.
    """

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
