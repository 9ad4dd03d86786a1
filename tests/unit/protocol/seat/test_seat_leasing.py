"""Leases across two steps: nothing of the next one before all of the current one is leased."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import (
    ApplyLocalTask,
    BackwardTask,
    Compute,
    ForwardTask,
    Outcome,
    SendPayload,
)
from protocol.pipeline.lease_server import STRAY_S
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView, leader
from protocol.wire.messages import Backward, Forward, Lease, LeaseRequest, LedgerReport, Message
from tests.support.protocol_examples import peer

ME, SIBLING, THIRD, AFTER = peer(1), peer(2), peer(3), peer(4)
FIRST = (ME, SIBLING, THIRD)
PER_STEP = 16
STEPS = 1000


def view(version: int, *first: PeerId) -> SwarmView:
    """Two stages, everybody at one version."""
    replicas = [Replica(each, version, True) for each in first or FIRST]
    return SwarmView.of([replicas, [Replica(AFTER, version, True)]])


def step_led_by(
    now: PeerId, following: PeerId, heir: PeerId | None = None, then: PeerId | None = None
) -> int:
    """Return a step that one replica leads and another one the next step; ``heir``: who leads that
    when ``following`` is gone; ``then``: who leads the step after it."""

    def fits(step: int) -> bool:
        if then not in (None, leader(view(step + 1), 0, step + 2)):
            return False
        left = view(step, *(each for each in FIRST if each != following))
        found = (leader(view(step), 0, step), leader(view(step), 0, step + 1))
        return found == (now, following) and heir in (None, leader(left, 0, step + 1))

    return next(step for step in range(2, STEPS) if fits(step))


def ids(step: int) -> list[int]:
    return list(range(step * PER_STEP, (step + 1) * PER_STEP))


class Desk:
    """A seat in stage 0 that has made the two versions before ``step``, and what it sends."""

    def __init__(self, step: int, *, delayed: bool = True, steps: int = STEPS) -> None:
        self.step, self.now = step, 0.0
        self.sent: list[tuple[PeerId, Message]] = []
        self.attempts: dict[int, int] = {}
        self.given: list[ForwardTask] = []
        place = Place(ME, 0, 2, PER_STEP)
        self.seat = Seat(
            place,
            size=64,
            steps=steps,
            tokens_per_step=1,
            step=step - 2,
            serving=True,
            delayed=delayed,
        )
        self.see(view(step - 2))
        for version in (step - 1, step):
            self.start_step()
            self.see(view(version))
        self.note(self.seat.allow_training(0.0))

    def see(self, seen: SwarmView) -> None:
        self.note(self.seat.update_view(seen, self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.note(self.seat.tick(self.now))

    def start_step(self) -> None:
        """The round of our step is applied."""
        self.note(self.seat.computed(ApplyLocalTask(self.seat.step), Outcome(hash="h"), self.now))

    def hear(self, sender: PeerId, message: Message) -> None:
        self.note(self.seat.receive(sender, message, self.now))

    def report(self, sender: PeerId, step: int, in_flight: Sequence[int]) -> None:
        done, held = (to_bitmap(held, step, PER_STEP) for held in ((), in_flight))
        self.hear(sender, LedgerReport(0, step, 1, done, held, 0))

    def finish(self, microbatch: int) -> None:
        """All that was given is computed; the gradient of one comes back and is added."""
        for task in self.given:  # grows meanwhile
            self.note(self.seat.computed(task, Outcome(), 0.0))
        step, attempt = microbatch // PER_STEP, self.attempts[microbatch]
        self.note(self.seat.receive(AFTER, Backward(0, step, microbatch, attempt), 0.0))
        self.note(self.seat.computed(BackwardTask(step, microbatch), Outcome(), 0.0))
        assert microbatch in self.seat.pipeline.done(step)

    def note(self, effects: Sequence[object]) -> None:
        self.sent += [(e.peer, e.message) for e in effects if isinstance(e, Send)]
        forwarded = [e.message for e in effects if isinstance(e, SendPayload)]
        self.attempts |= {m.microbatch: m.attempt for m in forwarded if isinstance(m, Forward)}
        tasks = [effect.task for effect in effects if isinstance(effect, Compute)]
        self.given += [task for task in tasks if isinstance(task, ForwardTask)]

    def asked(self, step: int) -> list[PeerId]:
        """The leader that it asked for work of a step."""
        return [to for to, m in self.sent if isinstance(m, LeaseRequest) and m.step == step]

    def leased(self, step: int) -> list[tuple[PeerId, list[int]]]:
        return [(to, m.ids) for to, m in self.sent if isinstance(m, Lease) and m.step == step]

    def held(self, step: int) -> set[int]:
        return self.seat.pipeline.in_flight(step)


class TestAsking:
    def test_nobody_asks_for_the_next_step_while_something_may_be_left(self) -> None:
        step = step_led_by(SIBLING, THIRD)
        desk = Desk(step)
        assert desk.asked(step) == [SIBLING]
        desk.hear(SIBLING, Lease(step, ids(step)[:1], again=False))
        assert desk.asked(step) == [SIBLING, SIBLING]
        assert desk.asked(step + 1) == []

    @pytest.mark.parametrize("following", [SIBLING, THIRD])
    def test_after_the_empty_lease_it_asks_who_leads_the_next_step(self, following: PeerId) -> None:
        step = step_led_by(SIBLING, following)
        desk = Desk(step)
        desk.hear(SIBLING, Lease(step, [], again=False))
        assert desk.asked(step + 1) == [following]
        desk.hear(following, Lease(step + 1, ids(step + 1)[:2], again=False))
        assert desk.held(step + 1) == set(ids(step + 1)[:2])
        assert desk.given == [ForwardTask(step + 1, ids(step + 1)[0])]

    def test_itself_if_that_is_who_leads_it(self) -> None:
        step = step_led_by(SIBLING, ME)
        desk = Desk(step)
        desk.hear(SIBLING, Lease(step, [], again=False))
        assert desk.asked(step + 1) == [], "nobody else"
        assert ids(step + 1)[0] in desk.held(step + 1)
        assert desk.given == [ForwardTask(step + 1, ids(step + 1)[0])]

    def test_an_empty_lease_of_somebody_else_says_nothing(self) -> None:
        step = step_led_by(SIBLING, THIRD)
        desk = Desk(step)
        desk.hear(THIRD, Lease(step, [], again=False))
        desk.hear(SIBLING, Lease(step + 1, [], again=False))
        assert desk.asked(step + 1) == []

    def test_said_of_the_next_step_it_holds_when_that_has_begun(self) -> None:
        step = step_led_by(THIRD, SIBLING, then=THIRD)
        desk = Desk(step)
        desk.hear(THIRD, Lease(step, [], again=False))
        desk.hear(SIBLING, Lease(step + 1, [], again=False))
        assert desk.asked(step + 2) == []
        desk.start_step()
        desk.see(view(step + 1))
        assert desk.asked(step + 2) == [THIRD]

    def test_a_new_leader_may_have_something_left(self) -> None:
        step = step_led_by(SIBLING, THIRD)
        desk = Desk(step)
        desk.see(view(step, ME, SIBLING))
        desk.hear(SIBLING, Lease(step, [], again=False))
        before = len(desk.asked(step + 1))
        desk.see(view(step, ME, THIRD))
        assert len(desk.asked(step + 1)) == before

    def test_the_word_of_one_step_does_not_hold_for_the_next(self) -> None:
        step = step_led_by(SIBLING, SIBLING)
        desk = Desk(step)
        desk.hear(SIBLING, Lease(step, [], again=False))
        desk.start_step()
        desk.see(view(step + 1))
        assert desk.asked(step + 2) == []

    def test_nothing_beyond_the_last_step_of_the_run(self) -> None:
        step = step_led_by(SIBLING, THIRD)
        desk = Desk(step, steps=step + 1)
        desk.hear(SIBLING, Lease(step, [], again=False))
        assert desk.asked(step) == [SIBLING]
        assert desk.asked(step + 1) == []

    @pytest.mark.parametrize("ahead", [2, 3, 9])
    def test_leases_further_ahead_are_ignored(self, ahead: int) -> None:
        step = step_led_by(SIBLING, THIRD)
        desk = Desk(step)
        desk.hear(SIBLING, Lease(step + ahead, ids(step + ahead), again=False))
        assert desk.seat.pipeline.empty

    def test_a_synchronous_seat_takes_none_of_the_next_step(self) -> None:
        step = step_led_by(SIBLING, THIRD)
        desk = Desk(step, delayed=False)
        desk.hear(SIBLING, Lease(step, [], again=False))
        desk.hear(THIRD, Lease(step + 1, ids(step + 1)[:2], again=False))
        assert desk.asked(step + 1) == []
        assert desk.seat.pipeline.empty


class TestSayingThatNothingIsLeft:
    def all_leased(self, *, delayed: bool) -> tuple[Desk, int]:
        """We lead, and SIBLING has asked for more than there is."""
        step = step_led_by(ME, THIRD)
        desk = Desk(step, delayed=delayed)
        desk.hear(SIBLING, LeaseRequest(step, 1000))
        [(to, leased), *_] = desk.leased(step)
        assert to == SIBLING
        assert set(leased) == set(ids(step)) - desk.held(step)
        return desk, step

    def test_once_to_each_that_waits(self) -> None:
        desk, step = self.all_leased(delayed=True)
        assert desk.leased(step)[1:] == [(SIBLING, [])]
        leased = len(desk.leased(step)[0][1])
        desk.hear(SIBLING, LeaseRequest(step, 5, leased))
        assert len(desk.leased(step)) == 2, "it knows"
        desk.hear(THIRD, LeaseRequest(step, 5))
        assert desk.leased(step)[2:] == [(THIRD, [])]

    def test_and_to_itself(self) -> None:
        """It asks the next step's leader, as the others do."""
        desk, step = self.all_leased(delayed=True)
        assert desk.asked(step + 1) == []
        desk.finish(min(desk.held(step)))
        assert desk.asked(step + 1) == [THIRD]

    def test_not_in_a_synchronous_run(self) -> None:
        desk, step = self.all_leased(delayed=False)
        assert desk.leased(step)[1:] == []

    def test_not_while_something_is_left(self) -> None:
        step = step_led_by(ME, THIRD)
        desk = Desk(step)
        desk.hear(SIBLING, LeaseRequest(step, 1))
        assert [len(leased) for _, leased in desk.leased(step)] == [1]


class TestTakingOver:
    def test_the_current_step_is_leased_again_once_all_have_reported(self) -> None:
        """What the leader before has leased is in nobody's report yet."""
        left = ME, SIBLING
        ours = (n for n in range(2, STEPS) if leader(view(n, *left), 0, n) == ME)
        step = next(n for n in ours if leader(view(n), 0, n) == THIRD)
        desk = Desk(step)
        desk.see(view(step, *left))
        desk.hear(SIBLING, LeaseRequest(step, 3))
        assert desk.leased(step) == []
        desk.report(SIBLING, step, ids(step)[:10])
        desk.hear(SIBLING, LeaseRequest(step, 3, 10))
        [(to, leased), *_] = desk.leased(step)
        assert to == SIBLING
        assert leased
        assert not set(leased) & set(ids(step)[:10])

    def test_also_by_who_has_led_it_before(self) -> None:
        newcomer = peer(5)
        both = *FIRST, newcomer
        ours = (n for n in range(2, STEPS) if leader(view(n), 0, n) == ME)
        step = next(n for n in ours if leader(view(n, *both), 0, n) == newcomer)
        desk = Desk(step)
        desk.see(view(step, *both))
        assert desk.seat.current_leader() == newcomer
        desk.see(view(step))
        desk.hear(SIBLING, LeaseRequest(step, 3))
        assert desk.leased(step) == []
        desk.report(SIBLING, step, ids(step)[:6])
        assert desk.leased(step) == []
        desk.report(THIRD, step, ids(step)[6:9])
        [(to, leased), *_] = desk.leased(step)
        assert to == SIBLING
        assert not set(leased) & set(ids(step)[:9])


class TestHandingOutTheNextStep:
    def test_who_leads_it_from_the_start_goes_on_with_its_book(self) -> None:
        step = step_led_by(SIBLING, ME)
        desk, of_next = Desk(step), step + 1
        desk.hear(THIRD, LeaseRequest(of_next, 3))
        desk.hear(SIBLING, Lease(step, [], again=False))
        own = desk.held(of_next)
        assert desk.leased(of_next) == [(THIRD, ids(of_next)[:3])]
        assert own
        desk.start_step()
        desk.see(view(of_next))
        desk.hear(SIBLING, LeaseRequest(of_next, 1000))
        (_, first), (to, second), *_ = desk.leased(of_next)
        assert to == SIBLING
        all_leased = [*first, *second, *desk.held(of_next)]
        assert sorted(all_leased) == ids(of_next)

    def test_what_was_leased_ahead_is_no_stray_when_its_step_begins(self) -> None:
        """It may still be on its way then, however long ago the step before began."""
        step = step_led_by(SIBLING, ME)
        desk, of_next = Desk(step), step + 1
        desk.hear(THIRD, LeaseRequest(of_next, 1000))
        [(_, leased)] = desk.leased(of_next)
        desk.wait(2 * STRAY_S)
        desk.start_step()
        desk.see(view(of_next))
        for sibling in (SIBLING, THIRD):
            desk.report(sibling, of_next, ())
        desk.wait(1.0)
        desk.hear(SIBLING, LeaseRequest(of_next, 1000))
        assert not set(leased) & {m for to, some in desk.leased(of_next)[1:] for m in some}
        desk.wait(STRAY_S)
        desk.hear(SIBLING, LeaseRequest(of_next, 1000))
        assert set(leased) & {m for to, some in desk.leased(of_next)[1:] for m in some}

    def test_who_is_a_step_further_and_asks_before_it_leads_is_not_forgotten(self) -> None:
        """It asks once: a commit reaches one replica before the other, and averaging takes longer
        than computing."""
        step = step_led_by(THIRD, SIBLING, then=ME)
        desk, after_next = Desk(step), step + 2
        desk.hear(THIRD, LeaseRequest(after_next, 3))
        assert desk.leased(after_next) == []
        desk.start_step()
        desk.see(view(step + 1))
        assert desk.leased(after_next) == [(THIRD, ids(after_next)[:3])]

    def test_who_takes_it_over_leases_nothing_before_it_is_the_current_one(self) -> None:
        """Leases granted by the other leader are in nobody's report yet."""
        step = step_led_by(THIRD, SIBLING, heir=ME)
        desk, of_next = Desk(step), step + 1
        desk.see(view(step, ME, THIRD))
        desk.hear(THIRD, LeaseRequest(of_next, 3))
        desk.hear(THIRD, Lease(step, [], again=False))
        assert desk.leased(of_next) == []
        assert desk.held(of_next) == set()
        desk.start_step()
        desk.see(view(of_next, ME, THIRD))
        assert desk.leased(of_next) == []
        desk.report(THIRD, of_next, ids(of_next)[:2])
        desk.hear(THIRD, LeaseRequest(of_next, 3, 2))
        leased = [m for _, some in desk.leased(of_next) for m in some]
        assert leased
        assert not set(leased) & (set(ids(of_next)[:2]) | desk.held(of_next))

    def test_then_it_waits_for_those_who_are_still_a_step_behind(self) -> None:
        """They hold what the other one has leased them of it."""
        step = step_led_by(THIRD, SIBLING, heir=ME)
        desk, of_next = Desk(step), step + 1
        desk.see(view(step, ME, THIRD))
        desk.hear(THIRD, Lease(step, [], again=False))
        desk.start_step()
        behind = [Replica(ME, of_next, True), Replica(THIRD, step, True)]
        desk.see(SwarmView.of([behind, [Replica(AFTER, step, True)]]))
        desk.hear(THIRD, LeaseRequest(of_next, 3))
        assert desk.leased(of_next) == []
        assert desk.held(of_next) == set()
        desk.report(THIRD, of_next, ids(of_next)[:10])
        assert desk.held(of_next) & set(ids(of_next)[:10]) == set()
        assert desk.held(of_next)

    def test_what_the_dead_were_leased_of_it_is_free(self) -> None:
        step = step_led_by(SIBLING, ME)
        desk, of_next = Desk(step), step + 1
        desk.hear(THIRD, LeaseRequest(of_next, 3))
        desk.see(view(step, ME, SIBLING))
        desk.hear(SIBLING, LeaseRequest(of_next, 4))
        said = [m for to, m in desk.sent if isinstance(m, Lease) and to == SIBLING]
        assert said == [
            Lease(of_next, ids(of_next)[:3], again=True),
            Lease(of_next, ids(of_next)[3:4], again=False),
        ]

    def test_nothing_beyond_the_last_step_of_the_run(self) -> None:
        step = step_led_by(SIBLING, ME)
        desk = Desk(step, steps=step + 1)
        desk.hear(SIBLING, LeaseRequest(step + 1, 3))
        desk.hear(SIBLING, Lease(step, [], again=False))
        assert desk.leased(step + 1) == []
        assert desk.held(step + 1) == set()

    def test_nor_in_a_synchronous_run(self) -> None:
        step = step_led_by(SIBLING, ME)
        desk = Desk(step, delayed=False)
        desk.hear(SIBLING, LeaseRequest(step + 1, 3))
        assert desk.leased(step + 1) == []
        desk.start_step()
        desk.see(view(step + 1))
        assert (SIBLING, ids(step + 1)[:3]) in desk.leased(step + 1)
