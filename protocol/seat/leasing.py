"""Leases of one replica of stage 0: of the current step and, with the one-step-delayed update, of
the next one, which may be computed while the current one is being closed.

A replica asks for the next step only after the leader of the current one has said that no leases
are left. Leases of the next step are in no ledger report before it is the current one; a leader
that takes over waits until then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from protocol.effects import Explain, Send
from protocol.ids import PeerId
from protocol.pipeline.flight import SPARE, Flight
from protocol.pipeline.lease_server import LeaseServer
from protocol.pipeline.newcomers import Bound, Newcomers
from protocol.pipeline.next_hop import believed_rates
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.pipeline.second_leases import HasLedger
from protocol.view import Replica, SwarmView, leader
from protocol.wire.messages import Lease, LeaseRequest


class LeaseClient:
    """Asks for leases, and owns the lease server used while we lead; idle at other stages.

    Args:
        place: where this replica stands.
        flight: measured ways of microbatches.
        lease_server: used while we lead.
    """

    def __init__(self, place: Place, flight: Flight, lease_server: LeaseServer) -> None:
        self._place, self._lease_server = place, lease_server
        self._asked: tuple[PeerId, int] | None = None
        self._asked_at = 0.0
        self._flight = flight

    def start_step(self, step: int, *, fresh: bool) -> None:
        """Begin a step; ``fresh`` if we lead it from the start."""
        self._asked = None
        self._lease_server.start_step(step, fresh=fresh)

    def successor(self, *, fresh: bool) -> LeaseClient:
        """Return the client of the next step, with the requests made to it already."""
        return LeaseClient(self._place, self._flight, self._lease_server.successor(fresh=fresh))

    # --- asking ----------------------------------------------------------------------------

    def ask(
        self, leader: PeerId, view: SwarmView, in_flight: int, held: int, now: float
    ) -> list[Send]:
        """Ask for as much as we can take, unless we have asked for exactly that already.

        Args:
            leader: leader of the step.
            view: the live replicas.
            in_flight: microbatches that we work on, of any step.
            held: microbatches of this step that we have, including counted ones.
            now: monotonic seconds.
        """
        want = self.in_flight_cap(view) - in_flight
        if want <= 0 or self._asked == (leader, want):
            return []
        if self._asked is None:
            self._asked_at = now
        self._asked = (leader, want)
        return [Send(leader, LeaseRequest(self._lease_server.step, want, held))]

    def got_work(self, now: float) -> None:
        """A lease came: what we asked for is settled."""
        if self._asked is not None:
            self._flight.leased(now - self._asked_at)
        self._asked = None

    def in_flight_cap(self, view: SwarmView) -> int:
        """Return the microbatches that we keep in flight at stage 0.

        As many as are busy somewhere, by the number of replicas; more, up to the whole step, where
        lines are so long that those do not keep them busy.
        """
        return max(
            usual_in_flight(view, self._place), min(self._flight.depth(), self._place.per_step)
        )

    # --- handing out -----------------------------------------------------------------------

    def asked(self, sender: PeerId, message: LeaseRequest) -> None:
        """Note a request for work."""
        self._lease_server.ask(sender, message.step, message.want, message.held)

    def take_over(self) -> None:
        """We have become the leader in the middle of a step."""
        self._lease_server.take_over()

    def release(self, peer: PeerId, reports: Mapping[PeerId, HasLedger]) -> None:
        """A replica died: what it held is free, unless a survivor holds it too."""
        self._lease_server.release(peer, {p: r for p, r in reports.items() if p != peer})

    def grant(
        self,
        reports: Mapping[PeerId, HasLedger],
        at_step: set[PeerId],
        now: float,
        *,
        say_none: bool = False,
    ) -> list[Send | Explain]:
        """Lease free microbatches to replicas that asked; near the end also late ones again.

        Args:
            reports: newest ledger report of each replica.
            at_step: live replicas of this step.
            now: monotonic seconds.
            say_none: tell each waiting replica once when nothing is left.
        """
        granted = self._lease_server.grant(reports, at_step, now)
        effects: list[Send | Explain] = [
            Send(peer, Lease(self._lease_server.step, ids, again)) for peer, again, ids in granted
        ]
        if second := self._lease_server.grant_second(now):
            effects.append(
                Send(second.peer, Lease(self._lease_server.step, [second.microbatch], True))
            )
            effects.append(Explain("pipeline", second.words(now)))
        told = self._lease_server.in_vain() if say_none else []
        return [*effects, *(Send(peer, Lease(self._lease_server.step, [], False)) for peer in told)]

    def without_backups(self) -> None:
        """Lease nothing twice on suspicion of being slow; to compare."""
        self._lease_server.seconds.budget.enabled = False

    def bound(self, newcomers: Bound) -> None:
        """These are newcomers of our stage, which get a bounded share."""
        self._lease_server.bound = newcomers

    def begin(self) -> None:
        """Its step is the current one from now on."""
        self._lease_server.begin()

    def tick(self, reports: Mapping[PeerId, HasLedger], now: float, *, all_said: bool) -> None:
        """Free ids that were leased a while ago and that no replica reports.

        ``reports``, ``now`` and ``all_said`` are as for ``LeaseServer.tick``.
        """
        self._lease_server.tick(reports, now, all_said=all_said)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return self._lease_server.next_deadline()


def usual_in_flight(view: SwarmView, place: Place) -> int:
    """Return our share of the microbatches that occupy all replicas at once, and a quarter more.

    Shares are proportional to speed, so that the step does not wait for work that a slow replica
    has not begun.
    """
    first = view.serving(0)
    replicas = sum(len(view.serving(stage)) for stage in range(place.stages))
    together = max(place.stages * len(first), replicas)
    return math.ceil(SPARE * together * _share(first, place.me)) + 1


def _share(replicas: tuple[Replica, ...], me: PeerId) -> float:
    """Return our share of a stage's speed; equal shares until all speeds are known."""
    rates = believed_rates({replica.peer: replica.rate for replica in replicas})
    return rates[me] / sum(rates.values()) if me in rates else 1 / max(1, len(replicas))


class Leasing:
    """The leases of one seat; idle at stages other than the first.

    Args:
        place: where this replica stands.
        step: the step that it begins with.
        pipeline: which holds what was leased.
        delayed: whether the next step may be begun.
        audited: whether the run has audits.
    """

    def __init__(
        self,
        place: Place,
        step: int,
        pipeline: Pipeline,
        *,
        delayed: bool,
        audited: bool = False,
    ) -> None:
        self._newcomers = Newcomers(active=audited)
        self._place, self._pipeline = place, pipeline
        self._flight = Flight(ahead=delayed)
        self.lease_client = LeaseClient(
            place, self._flight, LeaseServer(step, place.per_step, delayed=delayed)
        )
        self._next = self.lease_client.successor(fresh=False) if delayed else None
        self._leads_next = False
        self._none_left: dict[int, set[PeerId]] = {}
        """By step: the replicas that have told us that nothing is left of it."""

    def start_step(self, step: int, view: SwarmView, led_by: PeerId | None) -> None:
        """Begin ``step`` with the leases granted earlier; ``led_by`` leads it in ``view``."""
        leads = led_by == self._place.me
        self._none_left = {of: by for of, by in self._none_left.items() if of >= step}
        self._flight.start_step()
        self._newcomers.settle()
        if self._next is None:
            self.lease_client.start_step(step, fresh=leads)
            return
        led_before = self._leads_next
        self._leads_next = self._leader_of_next(view) == self._place.me
        self.lease_client, self._next = self._next, self._next.successor(fresh=self._leads_next)
        self.lease_client.begin()
        if leads and not led_before:
            self.lease_client.take_over()

    def update_view(self, view: SwarmView, *, took_over: bool) -> None:
        """Take a new view; ``took_over``: we lead the current step since this view."""
        bound = self._newcomers.update(view.serving(self._place.stage))
        self.lease_client.bound(bound)
        if self._next is not None:
            self._next.bound(bound)
        if took_over:
            self.lease_client.take_over()
        leads, led_before = self._leader_of_next(view) == self._place.me, self._leads_next
        self._leads_next = leads
        if self._next is not None and leads and not led_before:
            self._next.take_over()

    def release(self, peer: PeerId, reports: Mapping[PeerId, HasLedger]) -> None:
        """A replica died: what it held is free, unless a survivor holds it too."""
        self.lease_client.release(peer, reports)
        if self._next is not None:
            self._next.release(peer, {})

    def tick(self, view: SwarmView, reports: Mapping[PeerId, HasLedger], now: float) -> None:
        """Grant and lease again what is due in the current step, which we lead.

        Args:
            view: the live replicas.
            reports: newest ledger report of each replica.
            now: monotonic seconds.
        """
        step = self._pipeline.step
        said = {r.peer for r in view.serving(0) if self._may_hold(r, step)} <= reports.keys()
        self.lease_client.tick(reports, now, all_said=said or self._next is None)

    def _may_hold(self, replica: Replica, step: int) -> bool:
        """Whether it may have been leased something of a step."""
        return replica.version == step or (self._next is not None and replica.version == step - 1)

    def asked(self, sender: PeerId, message: LeaseRequest) -> None:
        """Note a request for work."""
        of_next = self._next if message.step > self._pipeline.step else None
        (of_next or self.lease_client).asked(sender, message)

    def leased(self, sender: PeerId, message: Lease, now: float) -> list[int]:
        """Take a lease of ``sender`` at ``now``; return the ids that we must compute.

        Args:
            sender: who leases it.
            message: step and ids.
            now: monotonic seconds.
        """
        client = self.lease_client if message.step == self._pipeline.step else self._next
        if client is None or not 0 <= message.step - self._pipeline.step <= 1:
            return []
        if message.ids:
            client.got_work(now)
        else:
            self._none_left.setdefault(message.step, set()).add(sender)
        return message.ids

    def follow_up(
        self,
        view: SwarmView,
        reports: Mapping[PeerId, HasLedger],
        led_by: PeerId | None,
        now: float,
        *,
        steps: int,
        leads: bool,
        wants: tuple[bool, bool],
    ) -> list[Send | Explain]:
        """Grant leases if we lead, and ask for leases if we can take work.

        Args:
            view: the live replicas.
            reports: ledger reports of the current step, if we lead it.
            led_by: leader of the current step.
            now: monotonic seconds.
            steps: steps of the whole run; later ones are not leased.
            leads: whether we lead and microbatches may be leased.
            wants: whether we may take work of the current step and of the next one.
        """
        step, of = self._pipeline.step, self._pipeline
        in_flight, done = of.in_flight(), of.done()
        ahead, ahead_done = self._held_of_next()
        few = usual_in_flight(view, self._place) if self._next is not None else 1
        both = in_flight | ahead if ahead else in_flight
        self._flight.observe(both, (done, ahead_done), now, few=few)
        effects: list[Send | Explain] = []
        if leads:
            at_step = {r.peer for r in view.serving(0) if self._may_hold(r, step)}
            effects += self.lease_client.grant(
                reports, at_step, now, say_none=self._next is not None
            )
        busy = len(in_flight) + len(ahead)
        if wants[0] and led_by is not None:
            held = len(in_flight) + len(done)
            effects += self.lease_client.ask(led_by, view, busy, held, now)
        if self._next is None or step + 1 >= steps:
            return effects
        if self._leads_next:
            effects += self._next.grant({}, set(), now)
        to = self._leader_of_next(view)
        if wants[1] and to is not None and led_by in self._none_left.get(step, ()):
            held = len(ahead) + len(ahead_done)
            effects += self._next.ask(to, view, busy, held, now)
        return effects

    def _held_of_next(self) -> tuple[Set[int], Set[int]]:
        if self._next is None:
            return frozenset(), frozenset()
        step = self._pipeline.step + 1
        return self._pipeline.in_flight(step), self._pipeline.done(step)

    def _leader_of_next(self, view: SwarmView) -> PeerId | None:
        """Return the leader of the next step; a replica one step behind will have caught up."""
        if self._next is None:
            return None
        return leader(view, self._place.stage, self._pipeline.step + 1, behind=2)
