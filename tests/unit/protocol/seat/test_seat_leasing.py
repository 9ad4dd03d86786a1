"""Leases of a seat: one step at a time, its share of what keeps the swarm busy, and nothing twice
when another one leads."""

from collections.abc import Sequence

import pytest

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import Outcome
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.seat.leasing import Leasing
from protocol.view import Replica, SwarmView, leaders
from protocol.wire.messages import Lease, LeaseRequest, LedgerReport, Message
from tests.support.protocol_examples import peer
from tests.support.seats import applied, seat_of, view_of

ME, SIBLING, THIRD, AFTER = peer(1), peer(2), peer(3), peer(4)
FIRST = (ME, SIBLING, THIRD)
PER_STEP = 16
STEPS = 1000


def view(version: int, *first: PeerId) -> SwarmView:
    """Two stages, everybody at one version."""
    return view_of(version, first or FIRST, [AFTER])


def step_led_by(now: PeerId, following: PeerId) -> int:
    """Return a step that one replica leads, and another one the next step."""
    return next(
        step
        for step in range(2, STEPS)
        if (leaders(view(step), 0, step)[0], leaders(view(step), 0, step + 1)[0])
        == (now, following)
    )


def ids(step: int) -> list[int]:
    return list(range(step * PER_STEP, (step + 1) * PER_STEP))


class Desk:
    """A seat in stage 0 that has made the two versions before ``step``, and what it sends."""

    def __init__(self, step: int) -> None:
        self.sent: list[tuple[PeerId, Message]] = []
        place, size = Place(ME, 0, 2, PER_STEP), 64
        self.seat = seat_of(place, step - 2, size=size, steps=STEPS)
        self.see(view(step - 2))
        for version in (step - 1, step):
            self.start_step()
            self.see(view(version))
        self.note(self.seat.tick(0.0))

    def see(self, seen: SwarmView) -> None:
        self.note(self.seat.update_view(seen, 0.0))

    def start_step(self) -> None:
        """The round of our step is applied."""
        self.note(applied(self.seat, Outcome(hash="aa"), 0.0))

    def hear(self, sender: PeerId, message: Message) -> None:
        self.note(self.seat.receive(sender, message, 0.0))

    def report(self, sender: PeerId, step: int, in_flight: Sequence[int]) -> None:
        done, held = (to_bitmap(held, step, PER_STEP) for held in ((), in_flight))
        self.hear(sender, LedgerReport(0, step, 1, done, held, 0))

    def note(self, effects: Sequence[object]) -> None:
        self.sent += [(e.peer, e.message) for e in effects if isinstance(e, Send)]

    def asked(self, step: int) -> list[PeerId]:
        """The leader that it asked for work of a step."""
        return [to for to, m in self.sent if isinstance(m, LeaseRequest) and m.step == step]

    def leased(self, step: int) -> list[tuple[PeerId, list[int]]]:
        return [(to, m.ids) for to, m in self.sent if isinstance(m, Lease) and m.step == step]


class TestTheNextStep:
    def test_only_the_leases_of_the_leader_count(self) -> None:
        """Else any sibling could have all others compute the whole step."""
        step = step_led_by(SIBLING, THIRD)
        desk = Desk(step)
        desk.hear(THIRD, Lease(step, ids(step), again=False))
        assert desk.seat.pipeline.empty
        desk.hear(SIBLING, Lease(step, ids(step)[:1], again=False))
        assert not desk.seat.pipeline.empty

    def test_who_is_a_step_further_and_asks_before_it_leads_is_not_forgotten(self) -> None:
        """It asks once: a commit reaches one replica before the other."""
        step = step_led_by(SIBLING, ME)
        desk = Desk(step)
        desk.hear(SIBLING, LeaseRequest(step + 1, 3))
        assert desk.leased(step + 1) == []
        desk.start_step()
        desk.see(view(step + 1))
        assert (SIBLING, ids(step + 1)[:3]) in desk.leased(step + 1)


class TestTakingOver:
    def test_what_was_reported_is_not_leased_again(self) -> None:
        left = ME, SIBLING
        ours = (n for n in range(2, STEPS) if leaders(view(n, *left), 0, n)[0] == ME)
        step = next(n for n in ours if leaders(view(n), 0, n)[0] == THIRD)
        desk = Desk(step)
        desk.see(view(step, *left))
        desk.report(SIBLING, step, ids(step)[:10])
        desk.hear(SIBLING, LeaseRequest(step, 3, 10))
        [(to, leased), *_] = desk.leased(step)
        assert to == SIBLING
        assert leased
        assert not set(leased) & set(ids(step)[:10])


def desk_of(peer: PeerId) -> Leasing:
    place = Place(peer, 0, 3, 64)
    return Leasing(place, Pipeline(place, 0))


def rated(mine: float, theirs: float) -> SwarmView:
    first = [Replica(ME, 0, True, rate=mine), Replica(SIBLING, 0, True, rate=theirs)]
    return SwarmView.of([first, [Replica(AFTER, 0, True)], [Replica(AFTER, 0, True)]])


@pytest.mark.parametrize(
    ("mine", "theirs", "cap"),
    [
        (0.0, 0.0, 5),  # 1.25 x (3 stages x 2 replicas) / 2, rounded up, and one
        (1.0, 0.0, 5),  # one has not said: equal shares
        (1.0, 1.0, 5),
        (3.0, 1.0, 7),
        (1.0, 3.0, 3),
        (1.0, 1e30, 3),  # a boast counts as four times the usual
        (1e30, 1.0, 7),
    ],
)
def test_shares_follow_speed_within_bounds(mine: float, theirs: float, cap: int) -> None:
    assert desk_of(ME).in_flight_cap(rated(mine, theirs)) == cap


def test_who_is_not_in_the_view_yet_takes_an_equal_share() -> None:
    assert desk_of(THIRD).in_flight_cap(rated(1.0, 1.0)) == 5
