"""Leases: every id is with one holder or free, whoever asks, dies or takes over."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.leases import LeaseBook
from protocol.pipeline.lessor import STRAY_S, Lessor

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

    def test_a_later_request_replaces_the_earlier(self) -> None:
        book = LeaseBook(range(8))
        book.ask(A, 5)
        book.ask(A, 2)
        assert ids_of(book.grant(), A) == [0, 1]

    def test_requests_wait_until_something_is_free(self) -> None:
        book = LeaseBook(range(2))
        book.ask(A, 2)
        book.grant()
        book.ask(B, 1)
        assert book.grant() == []
        assert book.release(A) == [0, 1]
        assert book.grant() == [(B, True, [0])]

    def test_the_dead_get_nothing(self) -> None:
        book = LeaseBook(range(2))
        book.ask(A, 2)
        book.release(A)
        assert book.grant() == []

    def test_only_what_was_leased_before_is_marked_again(self) -> None:
        book = LeaseBook(range(4))
        book.ask(A, 1)
        book.grant()
        book.release(A)
        book.ask(B, 4)
        assert book.grant() == [(B, True, [0]), (B, False, [1, 2, 3])]

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


class TestLessor:
    def fresh(self, step: int = 2) -> Lessor:
        lessor = Lessor(step - 1, PER_STEP)
        lessor.start_step(step, fresh=True)
        return lessor

    def test_a_leader_from_the_start_grants_at_once(self) -> None:
        lessor = self.fresh()
        lessor.ask(A, 2, 2)
        assert lessor.grant({}, {A}, 0.0) == [(A, False, [16, 17])]

    def test_requests_a_step_early_are_kept(self) -> None:
        lessor = self.fresh()
        lessor.ask(A, 3, 2)
        assert lessor.grant({}, {A}, 0.0) == []
        lessor.start_step(3, fresh=True)
        assert lessor.grant({}, {A}, 1.0) == [(A, False, [24, 25])]

    def test_requests_for_other_steps_are_dropped(self) -> None:
        lessor = self.fresh()
        for step in (0, 1, 4, 2**40):
            lessor.ask(A, step, 2)
        assert lessor.grant({}, {A}, 0.0) == []
        lessor.start_step(3, fresh=True)
        assert lessor.grant({}, {A}, 0.0) == []

    def test_a_successor_waits_for_every_report(self) -> None:
        lessor = self.fresh()
        lessor.take_over()
        lessor.ask(A, 2, PER_STEP)
        assert lessor.grant({}, set(), 0.0) == []
        assert lessor.grant({A: Report()}, {A, B}, 0.0) == []
        reports = {A: Report(done=frozenset({16})), B: Report(in_flight=frozenset({17, 18}))}
        granted = lessor.grant(reports, {A, B}, 0.0)
        assert granted == [(A, True, list(range(19, 24)))]

    def test_what_the_dead_held_is_granted_again(self) -> None:
        lessor = self.fresh()
        lessor.ask(A, 2, 2)
        lessor.grant({}, {A, B}, 0.0)
        lessor.release(A, {B: Report()})
        lessor.ask(B, 2, 2)
        assert lessor.grant({B: Report()}, {B}, 1.0) == [(B, True, [16, 17])]

    def test_unless_a_survivor_holds_it_too(self) -> None:
        lessor = self.fresh()
        lessor.ask(A, 2, 2)
        lessor.grant({}, {A, B}, 0.0)
        survivor = {B: Report(in_flight=frozenset({16}))}
        lessor.release(A, survivor)
        lessor.ask(B, 2, 1)
        assert lessor.grant(survivor, {B}, 1.0) == [(B, True, [17])]

    def test_a_lost_lease_is_granted_again_after_a_while(self) -> None:
        lessor = self.fresh()
        lessor.ask(A, 2, 2)
        lessor.grant({}, {A}, 0.0)
        reports = {A: Report(in_flight=frozenset({17}))}  # 16 never arrived
        lessor.tick(reports, STRAY_S - 0.1)
        lessor.ask(B, 2, 1)
        assert ids_of(lessor.grant(reports, {A, B}, STRAY_S - 0.1), B) == [18]
        assert lessor.next_deadline() == STRAY_S - 0.1 + STRAY_S
        reports[B] = Report(in_flight=frozenset({18}))
        lessor.tick(reports, 2 * STRAY_S)
        lessor.ask(B, 2, 1)
        assert lessor.grant(reports, {A, B}, 2 * STRAY_S) == [(B, True, [16])]

    @given(st.sets(st.integers(0, 10**6), max_size=20))
    def test_reports_of_ids_that_are_not_ours_free_nothing(self, strange: set[int]) -> None:
        """The decoder refuses them; were they to come through, the step's ids stay whole."""
        lessor = self.fresh()
        lessor.take_over()
        lessor.ask(A, 2, PER_STEP)
        ours = set(range(16, 24))
        granted = lessor.grant({A: Report(in_flight=frozenset(strange))}, {A}, 0.0)
        assert set(ids_of(granted, A)) == ours - strange
