"""Work at stage 0: asking the step's leader for microbatches, and handing them out as one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from protocol.effects import Explain, Send
from protocol.ids import PeerId
from protocol.pipeline.lessor import Lessor
from protocol.pipeline.next_hop import believed_rates
from protocol.pipeline.pipeline import Place
from protocol.pipeline.second_leases import HasLedger
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Lease, LeaseRequest

SPARE = 1.25
"""In flight beyond the pipeline's depth (RECIPES: a quarter more)."""


class WorkDesk:
    """Both sides of leasing at one replica. Idle at stages other than the first."""

    def __init__(self, step: int, place: Place) -> None:
        self._place, self._step = place, step
        self._lessor = Lessor(step, place.per_step)
        self._asked: tuple[PeerId, int] | None = None

    def start_step(self, step: int, *, fresh: bool) -> None:
        """Begin a step; ``fresh`` if we lead it from the start."""
        self._step, self._asked = step, None
        self._lessor.start_step(step, fresh=fresh)

    # --- asking ----------------------------------------------------------------------------

    def ask(self, leader: PeerId, view: SwarmView, in_flight: int) -> list[Send]:
        """Ask for as much as we can take, unless we have asked for just that already."""
        want = in_flight_cap(view, self._place) - in_flight
        if want <= 0 or self._asked == (leader, want):
            return []
        self._asked = (leader, want)
        return [Send(leader, LeaseRequest(self._step, want))]

    def got_work(self) -> None:
        """A lease came: what we asked for is settled."""
        self._asked = None

    # --- handing out -----------------------------------------------------------------------

    def asked(self, sender: PeerId, message: LeaseRequest) -> None:
        """Note a request for work."""
        self._lessor.ask(sender, message.step, message.want)

    def take_over(self) -> None:
        """We have become the leader in the middle of a step."""
        self._lessor.take_over()

    def release(self, peer: PeerId, reports: Mapping[PeerId, HasLedger]) -> None:
        """A replica died: what it held is free, unless a survivor holds it too."""
        self._lessor.release(peer, {p: r for p, r in reports.items() if p != peer})

    def grant(
        self, reports: Mapping[PeerId, HasLedger], at_step: set[PeerId], now: float
    ) -> list[Send | Explain]:
        """Lease what is free to those that asked; or, near the end, what somebody is late with."""
        granted = self._lessor.grant(reports, at_step, now)
        effects: list[Send | Explain] = [
            Send(peer, Lease(self._step, ids, again)) for peer, again, ids in granted
        ]
        if second := self._lessor.grant_second(now):
            effects.append(Send(second.peer, Lease(self._step, [second.microbatch], True)))
            effects.append(Explain("pipeline", second.words(now)))
        return effects

    def without_backups(self) -> None:
        """Lease nothing twice on suspicion of being slow; to compare."""
        self._lessor.seconds.budget.enabled = False

    def tick(self, reports: Mapping[PeerId, HasLedger], now: float) -> None:
        """Free ids that nobody reports although they were leased a while ago."""
        self._lessor.tick(reports, now)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return self._lessor.next_deadline()


def in_flight_cap(view: SwarmView, place: Place) -> int:
    """Return the microbatches that we keep in flight at stage 0.

    All its replicas together keep enough for everybody to be busy, and a quarter more; each has its
    share by speed, lest the step waits for what a slow one has not begun.
    """
    first = view.serving(0)
    replicas = sum(len(view.serving(stage)) for stage in range(place.stages))
    together = max(place.stages * len(first), replicas)
    return math.ceil(SPARE * together * _share(first, place.me)) + 1


def _share(replicas: tuple[Replica, ...], me: PeerId) -> float:
    """Return our share of a stage's speed; equal shares until all speeds are known."""
    rates = believed_rates({replica.peer: replica.rate for replica in replicas})
    return rates[me] / sum(rates.values()) if me in rates else 1 / max(1, len(replicas))
