"""Leases: every id is with one holder or free, whoever asks, dies or takes over."""

import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from protocol.effects import Explain, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pace import LOST_S
from protocol.pipeline.ledger import to_bitmap
from protocol.rounds.reports import Report
from protocol.seat.leases import Leases
from protocol.wire.messages import Lease, LeaseRequest, LedgerReport
from tests.support.effects import sent

A, B, C = (peer_id_from_key(bytes([n]) * 32) for n in range(3))
PER_STEP = 8
STEP = 2
IDS = range(STEP * PER_STEP, (STEP + 1) * PER_STEP)


def report(done: Iterable[int] = (), held: Iterable[int] = ()) -> Report:
    """A replica's ledger, as the leader decodes it."""
    bits = [to_bitmap(ids, STEP, PER_STEP) for ids in (done, held)]
    return Report.of(LedgerReport(0, STEP, 1, *bits, 0), PER_STEP)


def leases_of(effects: Iterable[Send | Explain]) -> list[tuple[PeerId, bool, list[int]]]:
    """Return who gets what, and whether it was leased before."""
    return [(to, lease.again, lease.ids) for to, lease in sent(effects, Lease)]


class Desk:
    """The leader of step 2, the replicas of its stage, and what they have reported."""

    def __init__(self, *, live: Iterable[PeerId] = (A, B)) -> None:
        self.leases = Leases(STEP - 1, PER_STEP)
        self.leases.start_step(STEP)
        self.live = set(live)
        self.reports: dict[PeerId, Report] = {}

    def ask(self, peer: PeerId, want: int, held: int | None = None) -> None:
        have = self.reports.get(peer, report()).held.bit_count() if held is None else held
        self.leases.ask(peer, LeaseRequest(STEP, want, have), 0.0)

    def grant(self, now: float) -> list[Send | Explain]:
        return self.leases.grant(self.reports, self.live, now)

    def granted(self, now: float) -> list[tuple[PeerId, bool, list[int]]]:
        return leases_of(self.grant(now))

    def lose(self, peer: PeerId) -> None:
        self.live.discard(peer)
        self.reports.pop(peer, None)


class TestWhoGetsWhat:
    def test_who_asks_again_waits_behind_the_others(self) -> None:
        desk = Desk()
        for peer in (A, B, A):
            desk.ask(peer, 1)
        assert desk.granted(0.0) == [(B, False, [16]), (A, False, [17])]

    def test_what_is_on_its_way_is_not_leased_again(self) -> None:
        """Over a long line a replica asks several times before the first lease arrives."""
        desk = Desk()
        desk.ask(A, 2, held=0)
        assert desk.granted(0.0) == [(A, False, [16, 17])]
        desk.ask(A, 2, held=0)
        assert desk.granted(0.1) == []
        desk.ask(A, 3, held=0)
        assert desk.granted(0.2) == [(A, False, [18])]
        desk.ask(A, 2, held=3)
        assert desk.granted(0.3) == [(A, False, [19, 20])]

    def test_requests_a_step_early_are_kept(self) -> None:
        leases = Leases(STEP, PER_STEP)
        for peer in (A, B):
            leases.ask(peer, LeaseRequest(STEP + 1, 2, 0), 0.0)
        assert leases.grant({}, {A}, 0.0) == []
        leases.start_step(STEP + 1)
        assert leases_of(leases.grant({}, {A}, 1.0)) == [(A, False, [24, 25])], "B is dead"

    def test_requests_for_other_steps_are_dropped(self) -> None:
        desk = Desk()
        for step in (0, 1, 4, 2**40):
            desk.leases.ask(A, LeaseRequest(step, 2, 0), 0.0)
        assert desk.grant(0.0) == []
        desk.leases.start_step(STEP + 1)
        assert desk.grant(0.0) == []


class TestLosses:
    def test_a_lost_lease_is_granted_again_after_a_while(self) -> None:
        desk = Desk()
        desk.ask(A, 2)
        desk.grant(0.0)
        desk.reports[A] = report(held={17})  # 16 never arrived
        desk.ask(B, 1)
        assert desk.granted(LOST_S - 0.1) == [(B, False, [18])]
        desk.reports[B] = report(held={18})
        desk.ask(B, 1)
        assert desk.granted(LOST_S) == [(B, False, [19])]
        desk.reports[B] = report(held={18, 19})
        desk.ask(B, 1)
        assert desk.granted(2 * LOST_S) == [(B, True, [16])]

    def test_what_its_holder_left_to_one_that_died_since_is_free(self) -> None:
        """Nobody has it any more; waiting for it to count as stray would cost its gradient."""
        desk = Desk()
        desk.ask(A, 1)
        desk.grant(0.0)
        desk.reports = {A: report(held={16}), B: report(done={16})}
        desk.grant(1.0)
        desk.reports[A] = report()  # the plan counts it for B
        assert desk.grant(2.0) == []
        desk.lose(B)
        desk.ask(A, 1)
        assert desk.granted(3.0) == [(A, True, [16])]

    @given(st.integers(0, 2**32))
    def test_every_id_has_one_holder_or_is_free(self, seed: int) -> None:
        """Any requests, reports, losses and takeovers; then one replica has the whole step."""
        source, desk, now = random.Random(seed), Desk(live=[A, B, C]), 0.0
        for _ in range(60):
            now += source.choice([0.0, 0.1, 5.0])
            peer = source.choice([A, B, C])
            match source.randrange(6):
                case 0:
                    desk.ask(peer, source.randint(1, 4))
                case 1 | 2:
                    got = [m for _, _, ids in desk.granted(now) for m in ids]
                    reported = [desk.reports[p].held for p in desk.live & desk.reports.keys()]
                    assert not any(bits >> m - IDS[0] & 1 for bits in reported for m in got), seed
                    assert len(set(got)) == len(got), f"seed {seed}"
                case 3:
                    desk.lose(peer)
                case 4:
                    desk.live.add(peer)
                    some = source.sample(IDS, 5)
                    desk.reports[peer] = report(some[:2], some[2:])
                case 5:
                    desk.leases.take_over()
        desk.live, desk.reports, has = {A}, {A: report()}, set[int]()
        for _ in range(3):
            now += LOST_S
            desk.ask(A, PER_STEP)
            got = [m for _, _, ids in desk.granted(now) for m in ids]
            has |= set(got)
            desk.reports[A] = report(held=has)
        assert has == set(IDS), f"seed {seed}"


class TestTakingOver:
    def test_what_nobody_has_reported_is_free_and_may_have_been_leased(self) -> None:
        desk = Desk(live=[A, B, C])
        desk.leases.take_over()
        desk.ask(A, PER_STEP)
        desk.reports = {A: report(done={16}), B: report(held={17, 18})}
        assert desk.granted(5.0) == [(A, True, list(range(19, 24)))]

    def test_who_leads_again_relies_on_reports_alone(self) -> None:
        desk = Desk(live=[A])
        desk.ask(A, 1)
        desk.grant(0.0)
        desk.leases.take_over()
        desk.reports[A] = report()
        desk.ask(A, 1)
        assert desk.granted(1.0) == [(A, True, [16])]
