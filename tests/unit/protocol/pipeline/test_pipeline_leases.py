"""Leases: every id is with one holder or free, whoever asks, dies or takes over."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.lease_server import STRAY_S, LeaseServer
from protocol.pipeline.leases import LeaseBook

A, B, C = (peer_id_from_key(bytes([n]) * 32) for n in range(3))
PER_STEP = 8


@dataclass(frozen=True)
class Report:
    """A replica's ledger, as the leader decoded it."""

    done: frozenset[int] = frozenset()
    in_flight: frozenset[int] = frozenset()


def ids_of(granted: list[tuple[PeerId, bool, list[int]]], peer: PeerId) -> list[int]:
    return [m for to, _, ids in granted for m in ids if to == peer]


class TestLeaseBook:
    def test_the_oldest_ids_first_in_turns(self) -> None:
        book = LeaseBook(range(8, 16))
        book.ask(A, 3)
        book.ask(B, 1)
        assert book.grant() == [(A, False, [8, 10, 11]), (B, False, [9])]
        assert book.free == 4
        assert book.grant() == []

    def test_who_asks_again_waits_behind_the_others(self) -> None:
        book = LeaseBook(range(1))
        for peer in (A, B, A):
            book.ask(peer, 1)
        assert book.waiting() == [B, A]
        assert book.grant() == [(B, False, [0])]

    def test_the_dead_get_nothing(self) -> None:
        book = LeaseBook(range(2))
        book.ask(A, 2)
        book.release(A)
        assert book.grant() == []

    def test_the_first_claim_stands(self) -> None:
        book = LeaseBook(range(4))
        book.claim(A, {0, 1})
        book.claim(B, {1, 2})
        assert [book.holder(m) for m in range(4)] == [A, A, B, None]

    @given(st.integers(0, 2**32))
    def test_every_id_has_one_holder_or_is_free(self, seed: int) -> None:
        source = random.Random(seed)
        book = LeaseBook(range(PER_STEP))
        for _ in range(60):
            peer = source.choice([A, B, C])
            match source.randrange(5):
                case 0:
                    book.ask(peer, source.randint(1, 4))
                case 1:
                    for to, _, ids in book.grant():
                        assert all(book.holder(m) == to for m in ids)
                case 2:
                    book.release(peer)
                case 3:
                    book.claim(peer, {source.randrange(PER_STEP)})
                case 4:
                    book.reclaim(frozenset(source.sample(range(PER_STEP), 4)))
            held = sum(book.holder(m) is not None for m in range(PER_STEP))
            assert held + book.free == PER_STEP, f"seed {seed}"


class TestLeaseServer:
    def fresh(self, step: int = 2) -> LeaseServer:
        lease_server = LeaseServer(step - 1, PER_STEP)
        lease_server.start_step(step, fresh=True)
        return lease_server

    def test_what_is_on_its_way_is_not_leased_again(self) -> None:
        """Over a long line a replica asks several times before the first lease arrives."""
        lease_server = self.fresh()
        lease_server.ask(A, 2, 2, held=0)
        assert lease_server.grant({}, {A}, 0.0) == [(A, False, [16, 17])]
        lease_server.ask(A, 2, 2, held=0)
        assert lease_server.grant({}, {A}, 0.1) == []
        lease_server.ask(A, 2, 3, held=0)
        assert lease_server.grant({}, {A}, 0.2) == [(A, False, [18])]
        lease_server.ask(A, 2, 2, held=3)
        assert lease_server.grant({}, {A}, 0.3) == [(A, False, [19, 20])]

    def test_requests_a_step_early_are_kept(self) -> None:
        lease_server = self.fresh()
        lease_server.ask(A, 3, 2)
        assert lease_server.grant({}, {A}, 0.0) == []
        lease_server.start_step(3, fresh=True)
        assert lease_server.grant({}, {A}, 1.0) == [(A, False, [24, 25])]

    def test_not_that_of_one_who_has_died_since(self) -> None:
        lease_server = self.fresh(2)
        lease_server.ask(A, 3, 4)
        lease_server.release(A, {})
        lease_server.start_step(3, fresh=True)
        assert lease_server.grant({}, set(), 0.0) == []

    def test_requests_for_other_steps_are_dropped(self) -> None:
        lease_server = self.fresh()
        for step in (0, 1, 4, 2**40):
            lease_server.ask(A, step, 2)
        assert lease_server.grant({}, {A}, 0.0) == []
        lease_server.start_step(3, fresh=True)
        assert lease_server.grant({}, {A}, 0.0) == []

    def test_a_successor_waits_for_every_report(self) -> None:
        lease_server = self.fresh()
        lease_server.take_over()
        lease_server.ask(A, 2, PER_STEP)
        assert lease_server.grant({}, set(), 0.0) == []
        assert lease_server.grant({A: Report()}, {A, B}, 0.0) == []
        reports = {A: Report(done=frozenset({16})), B: Report(in_flight=frozenset({17, 18}))}
        granted = lease_server.grant(reports, {A, B}, 0.0)
        assert granted == [(A, True, list(range(19, 24)))]

    def test_what_the_dead_held_is_granted_again(self) -> None:
        lease_server = self.fresh()
        lease_server.ask(A, 2, 2)
        lease_server.grant({}, {A, B}, 0.0)
        lease_server.release(A, {B: Report()})
        lease_server.ask(B, 2, 2)
        assert lease_server.grant({B: Report()}, {B}, 1.0) == [(B, True, [16, 17])]

    def test_unless_a_survivor_holds_it_too(self) -> None:
        lease_server = self.fresh()
        lease_server.ask(A, 2, 2)
        lease_server.grant({}, {A, B}, 0.0)
        survivor = {B: Report(in_flight=frozenset({16}))}
        lease_server.release(A, survivor)
        lease_server.ask(B, 2, 1)
        assert lease_server.grant(survivor, {B}, 1.0) == [(B, True, [17])]

    def test_a_lost_lease_is_granted_again_after_a_while(self) -> None:
        lease_server = self.fresh()
        lease_server.ask(A, 2, 2)
        lease_server.grant({}, {A}, 0.0)
        reports = {A: Report(in_flight=frozenset({17}))}  # 16 never arrived
        lease_server.tick(reports, STRAY_S - 0.1)
        lease_server.ask(B, 2, 1)
        assert ids_of(lease_server.grant(reports, {A, B}, STRAY_S - 0.1), B) == [18]
        assert lease_server.next_deadline() == STRAY_S - 0.1 + STRAY_S
        reports[B] = Report(in_flight=frozenset({18}))
        lease_server.tick(reports, 2 * STRAY_S)
        lease_server.ask(B, 2, 1)
        assert lease_server.grant(reports, {A, B}, 2 * STRAY_S) == [(B, True, [16])]

    def test_what_its_holder_left_to_one_that_died_since_is_free(self) -> None:
        """Nobody has it any more; waiting for it to count as stray would cost its gradient."""
        lease_server = self.fresh()
        lease_server.ask(A, 2, 1)
        lease_server.grant({}, {A, B}, 0.0)
        reports = {A: Report(in_flight=frozenset({16})), B: Report(done=frozenset({16}))}
        lease_server.grant(reports, {A, B}, 1.0)
        reports = {A: Report(), B: reports[B]}  # the plan counts it for B
        assert lease_server.grant(reports, {A, B}, 2.0) == []
        lease_server.release(B, {A: reports[A]})
        lease_server.ask(A, 2, 1)
        assert lease_server.grant({A: reports[A]}, {A}, 3.0) == [(A, True, [16])]

    def test_given_up_when_the_other_is_dead_already(self) -> None:
        lease_server = self.fresh()
        lease_server.ask(A, 2, 1)
        lease_server.grant({}, {A, B}, 0.0)
        lease_server.grant({A: Report(done=frozenset({16}))}, {A}, 1.0)
        lease_server.ask(A, 2, 1)
        assert lease_server.grant({A: Report()}, {A}, 2.0) == [(A, True, [16])]

    def test_who_leads_again_relies_on_reports_alone(self) -> None:
        lease_server = self.fresh()
        lease_server.ask(A, 2, 1)
        lease_server.grant({}, {A}, 0.0)
        lease_server.take_over()
        lease_server.ask(A, 2, 1)
        assert lease_server.grant({A: Report()}, {A}, 1.0) == [(A, True, [16])]

    @given(st.sets(st.integers(0, 10**6), max_size=20))
    def test_reports_of_ids_that_are_not_ours_free_nothing(self, strange: set[int]) -> None:
        """The decoder refuses them; were they to come through, the step's ids stay whole."""
        lease_server = self.fresh()
        lease_server.take_over()
        lease_server.ask(A, 2, PER_STEP)
        ours = set(range(16, 24))
        granted = lease_server.grant({A: Report(in_flight=frozenset(strange))}, {A}, 0.0)
        assert set(ids_of(granted, A)) == ours - strange


class TestSecondLeases:
    """B has nothing to do, nothing is free, and A has had its two for long."""

    def led(self, took_s: float = 1.0) -> tuple[LeaseServer, dict[PeerId, Report], float]:
        """A step whose first six microbatches were done, three by each."""
        lease_server = LeaseServer(1, PER_STEP)
        lease_server.start_step(2, fresh=True)
        now, done = 0.0, {A: frozenset[int](), B: frozenset[int]()}
        reports = {A: Report(), B: Report()}
        for _ in range(3):
            for peer in (A, B):
                lease_server.ask(peer, 2, 1)
            for peer, _, ids in lease_server.grant(reports, {A, B}, now):
                done[peer] |= set(ids)
            now += took_s
            reports = {peer: Report(done[peer]) for peer in (A, B)}
        lease_server.ask(A, 2, 2)
        assert lease_server.grant(reports, {A, B}, now) == [(A, False, [22, 23])]
        reports[A] = Report(done[A], frozenset({22, 23}))
        lease_server.ask(B, 2, 4)
        assert lease_server.grant(reports, {A, B}, now) == []
        return lease_server, reports, now

    def test_at_once_the_last_of_two_whose_holder_is_slow_and_why(self) -> None:
        lease_server, _, now = self.led()
        assert lease_server.grant_second(now) is None, "among equals a queue is no reason"
        for _ in range(20):
            lease_server.seconds._timings[A].note(4.0)
        second = lease_server.grant_second(now)
        assert second is not None
        assert (second.microbatch, second.holder, second.peer) == (23, A, B)
        assert "nothing left" in second.words(now)

    def test_a_single_one_when_it_is_late(self) -> None:
        lease_server, reports, now = self.led()
        reports[A] = Report(reports[A].done | {23}, frozenset({22}))
        lease_server.grant(reports, {A, B}, now)
        assert lease_server.grant_second(now) is None
        due = lease_server.next_deadline()
        assert due is not None
        assert 1 < due - now < 4
        second = lease_server.grant_second(due)
        assert second is not None
        assert second.microbatch == 22

    def test_one_at_a_time_and_each_once(self) -> None:
        lease_server, reports, now = self.led()
        assert lease_server.grant_second(now + 9) is not None
        assert lease_server.grant_second(now + 90) is None, "B is busy with it"
        reports[B] = Report(reports[B].done | {23})
        lease_server.ask(B, 2, 4)
        lease_server.grant(reports, {A, B}, now + 91)
        second = lease_server.grant_second(now + 91)
        assert second is not None
        assert second.microbatch == 22
        reports[B] = Report(reports[B].done | {22})
        lease_server.grant(reports, {A, B}, now + 92)
        assert lease_server.grant_second(now + 920) is None

    def test_a_quarter_of_the_step_at_most(self) -> None:
        lease_server, reports, now = self.led()
        lease_server.seconds.budget.allowed = 1
        assert lease_server.grant_second(now + 9) is not None
        reports[B] = Report(reports[B].done | {23})
        lease_server.ask(B, 2, 4)
        lease_server.grant(reports, {A, B}, now + 10)
        assert lease_server.grant_second(now + 90) is None

    def test_not_while_something_is_free(self) -> None:
        lease_server, reports, now = self.led()
        lease_server.tick({A: Report(reports[A].done), B: reports[B]}, now + STRAY_S)
        assert lease_server.grant_second(now + 90) is None

    def test_not_to_one_that_is_busy_or_unknown(self) -> None:
        lease_server, reports, now = self.led()
        reports[B] = Report(reports[B].done, frozenset({21}))
        lease_server.grant(reports, {A, B}, now)
        assert lease_server.grant_second(now + 90) is None
        reports[B] = Report(reports[B].done)
        lease_server.ask(B, 2, 1)
        lease_server.grant(reports, {A, B}, now)
        lease_server.seconds._timings.clear()
        assert lease_server.grant_second(now + 90) is None

    def test_a_dead_first_holder_leaves_it_to_the_second(self) -> None:
        lease_server, reports, now = self.led()
        assert lease_server.grant_second(now + 9) is not None
        reports[B] = Report(reports[B].done, frozenset({23}))
        lease_server.grant(reports, {A, B}, now + 9.5)
        lease_server.release(A, {B: reports[B]})
        lease_server.ask(B, 2, PER_STEP)
        granted = lease_server.grant({B: reports[B]}, {B}, now + 10)
        assert 22 in ids_of(granted, B)
        assert 23 not in ids_of(granted, B)
