"""The leader: plans only what is complete, and proposes only what all agree on."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.decree.proposer import State
from protocol.effects import Explain, Send
from protocol.ids import PeerId, peer_id_from_key, short
from protocol.limits import MAX_ATTEMPT, MAX_NUMBER
from protocol.pace import ANSWER_S, FORGET_S, HEARD_S
from protocol.pipeline.ledger import from_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.leader import (
    LAGGARD_S,
    MAX_REFUSALS,
    MAX_REPORTS,
    OwnPart,
    RoundLeader,
)
from protocol.rounds.member import REFUSED
from protocol.rounds.quorum import Quorum
from protocol.rounds.shards import check_bounds
from protocol.view import Replica, SwarmView
from protocol.wire.messages import (
    Commit,
    LedgerReport,
    Propose,
    Ready,
    Reduced,
    Vote,
    decode_message,
    encode_message,
)
from protocol.wire.parts import Decree
from tests.support.round_leaders import (
    DIGEST,
    HALVES,
    IDS,
    ME,
    NEW,
    PER_STEP,
    SIZE,
    STAGE,
    STEP,
    B,
    C,
    commits,
    leader,
    planned,
    plans,
    proposals,
    ready,
    report,
    view,
    vote,
)


class TestPlanning:
    def test_nothing_is_planned_before_the_step_is_complete(self) -> None:
        made = leader(ME, B)
        assert not plans(made.report(ME, report(range(16, 20)), 0.0))
        assert not plans(made.report(B, report(range(20, 23)), 0.0))
        sent = plans(made.report(B, report(range(20, 24), seq=2), 0.0))
        assert set(sent) == {ME, B}

    def test_a_complete_union_without_every_report_is_not_enough(self) -> None:
        """The silent one may hold doubles that it has to take out."""
        made = leader(ME, B)
        assert not plans(made.report(ME, report(IDS), 0.0))
        assert plans(made.report(B, report(), 0.0))

    def test_an_idle_replica_is_a_member_too(self) -> None:
        _, plan = planned((ME, IDS), (B, ()))
        assert [member.peer for member in plan.members] == [ME, B]

    @given(st.lists(st.sets(st.sampled_from(sorted(IDS))), min_size=3, max_size=3))
    def test_every_id_is_counted_once_for_who_has_it(self, ledgers: list[set[int]]) -> None:
        made = leader(ME, B, C)
        effects: list[object] = []
        for peer, done in zip((ME, B, C), ledgers, strict=True):
            effects += made.report(peer, report(done), 0.0)
        sent = plans(effects)
        if set().union(*ledgers) != IDS:
            assert not sent
            return
        plan = sent[ME]
        assert check_bounds(plan.bounds, 3, SIZE)
        counted: list[int] = []
        for member in plan.members:
            held = ledgers[[ME, B, C].index(PeerId(member.peer))]
            mine = from_bitmap(member.counted, STEP, PER_STEP)
            assert mine <= held
            counted += mine
        assert sorted(counted) == sorted(IDS)

    def test_who_does_not_lead_plans_nothing(self) -> None:
        made = leader(ME)
        made.update_view(view(ME), False, 0.0)
        assert made.report(ME, report(IDS), 0.0) == []
        assert made.next_deadline() is None
        assert plans(made.update_view(view(ME), True, 1.0))

    def test_a_laggard_is_waited_for_but_not_for_ever(self) -> None:
        made = leader(ME, B)
        made.update_view(view(ME, B, B=STEP - 1), True, 0.0)
        assert not plans(made.report(ME, report(IDS), 0.0))
        assert made.next_deadline() == LAGGARD_S
        assert set(plans(made.tick(LAGGARD_S))) == {ME}

    def test_reports_a_step_early_count_when_we_get_there(self) -> None:
        made = leader(ME)
        first = (STEP + 1) * PER_STEP
        early = report(range(first, first + PER_STEP), step=STEP + 1)
        assert made.report(ME, early, 0.0) == []
        made.update_view(view(ME, version=STEP + 1), True, 1.0)
        assert plans(made.start_step(STEP + 1, 1.0))

    def test_a_slow_line_owns_less(self) -> None:
        made = leader(ME, B, C)
        lines = {ME: 8e6, B: 9e6, C: 4e5}
        ours = [
            Replica(peer, STEP, True, uplink_bytes_per_s=up, downlink_bytes_per_s=9e6)
            for peer, up in lines.items()
        ]
        made.update_view(SwarmView.of([[], ours]), True, 0.0)
        made.report(ME, report(range(16, 20)), 0.0)
        made.report(B, report(range(20, 24)), 0.0)
        plan = plans(made.report(C, report(), 0.0))[C]
        assert [member.peer for member in plan.members] == [ME, B, C]
        assert plan.bounds == [0, SIZE // 2, SIZE, SIZE]


def test_what_the_dead_said_of_the_next_step_is_not_brought_back() -> None:
    """It may return with an empty ledger, and count from one again."""
    made = leader(ME, B)
    made.report(B, report(range(24, 28), seq=900, step=STEP + 1), 0.0)
    made.update_view(view(ME), True, 0.0)
    made.start_step(STEP + 1, 1.0)
    assert made.reports == {}
    made.update_view(view(ME, B, version=STEP + 1), True, 2.0)
    made.report(B, report(seq=1, step=STEP + 1), 2.0)
    assert made.reports[B].done == frozenset()


class TestVoidPlans:
    def test_a_death_voids_the_plan(self) -> None:
        made, plan = planned(*HALVES)
        assert not plans(made.update_view(view(ME), True, 1.0))  # B's ids are gone
        again = plans(made.report(ME, report(IDS, seq=2), 2.0))
        assert again[ME].attempt > plan.attempt
        assert [member.peer for member in again[ME].members] == [ME]

    def test_a_ledger_that_no_longer_fits_voids_the_plan(self) -> None:
        made, plan = planned((ME, range(16, 21)), (B, range(20, 24)))
        effects = made.report(B, report(range(21, 24), seq=2), 0.5)
        again = plans(effects)[ME]
        assert again.attempt == plan.attempt + 1
        counted = {m.peer: from_bitmap(m.counted, STEP, PER_STEP) for m in again.members}
        assert counted == {ME: set(range(16, 21)), B: set(range(21, 24))}

    def test_a_double_finished_after_the_plan_was_made_voids_nothing(self) -> None:
        """Its member takes it out again. (One step in five was planned twice for such backups.)"""
        made, _ = planned(*HALVES)
        assert made.report(B, report({*range(20, 24), 16}, seq=2, promised=1), 0.5) == []

    def test_a_member_that_has_subtracted_its_doubles_still_fits(self) -> None:
        made, _ = planned((ME, range(16, 20)), (B, range(19, 24)))
        assert made.report(ME, report(range(16, 19), seq=2, promised=1), 0.5) == []

    def test_a_round_that_hangs_is_planned_anew(self) -> None:
        made, plan = planned(*HALVES)
        assert made.next_deadline() == FORGET_S
        effects = made.tick(FORGET_S)
        assert plans(effects)[ME].attempt == plan.attempt + 1
        assert any(isinstance(effect, Explain) for effect in effects)

    def test_an_attempt_that_is_planned_again_is_promised_by_the_electors(self) -> None:
        made, _ = planned(*HALVES, electors=(ME, B, C))
        made.report(B, report(range(21, 24), seq=2), 0.5)
        effects = made.report(ME, report(range(16, 21), seq=2), 0.6)
        assert set(proposals(effects)) == {ME, B, C}
        assert not plans(effects), "one of three is no majority"
        assert not made.may_plan
        again = plans(made.vote(C, vote(2), 0.7))
        assert again[B].attempt == 2
        assert {promise.peer for promise in again[B].promises} == {ME, C}

    def test_a_later_seat_of_ours_plans_later_attempts(self) -> None:
        """The one before has planned the first: its plan, and its members' Ready, are signed."""
        made = leader(ME, B)
        made.report(B, report(range(20, 24), promised=1), 0.0)
        sent = plans(made.report(ME, report(range(16, 20), promised=1), 0.0))
        assert sent[B].attempt == 2

    def test_what_others_say_of_attempts_does_not_exhaust_them(self) -> None:
        made = leader(ME, B)
        made.report(ME, report(range(16, 20)), 0.0)
        sent = plans(made.report(B, report(range(20, 24), promised=MAX_ATTEMPT), 0.0))
        assert sent[ME].attempt == 1

    def test_a_member_that_missed_the_plan_gets_it_again(self) -> None:
        made, plan = planned(*HALVES)
        late = report(range(20, 24), seq=2, promised=0)
        assert made.report(B, late, ANSWER_S + 0.1) == [Send(B, plan)]

    def test_different_gradients_are_never_committed(self) -> None:
        made, plan = planned(*HALVES)
        made.ready(ME, ready(), 1.0)
        effects = made.ready(B, ready(digest=b"\1" * 32), 1.0)
        assert not commits(effects)
        assert plans(effects)[ME].attempt == plan.attempt + 1


class TestDecree:
    def test_what_all_are_ready_for_is_proposed_and_told_to_all_once_voted_for(self) -> None:
        made, plan = planned(*HALVES, electors=(ME, C, NEW))
        assert made.ready(ME, ready(), 1.0) == []
        asked = made.ready(B, ready(), 1.0)
        decree = Decree(1, DIGEST, (ME, B), tuple(plan.electors), 3.0, (b"", b""))
        assert proposals(asked) == dict.fromkeys(
            sorted((ME, C, NEW)), Propose(STAGE, STEP, 1, decree)
        )
        assert not commits(asked), "one of three is no majority"
        made.tick(1.1)
        missing = ", ".join(map(short, sorted((C, NEW))))
        assert made.may_plan.reason == f"waiting for the votes of {missing}"
        told = made.vote(C, vote(voted=1), 2.0)
        assert sorted(commits(told)) == sorted((ME, B, C, NEW))
        [commit] = {e.message for e in told if isinstance(e, Send)}
        assert (commit.attempt, commit.leader, commit.decree) == (1, ME, decree)
        assert [peer for peer, _ in commit.votes] == sorted((ME, C))
        assert decode_message(encode_message(commit)) == commit
        assert made.vote(NEW, vote(voted=1), 2.1) == []

    def test_alone_it_commits_at_once(self) -> None:
        made, _ = planned((ME, IDS))
        assert commits(made.ready(ME, ready(), 1.0)) == [ME]

    def test_who_is_let_in_hears_of_it(self) -> None:
        made = leader(ME)
        made.join(NEW, 0.0)
        made.report(ME, report(IDS), 1.0)
        assert set(commits(made.ready(ME, ready(), 1.0))) == {ME, NEW}

    def test_what_a_lost_member_had_counted_is_not_planned_with(self) -> None:
        made = leader(ME, B, C)
        made.report(ME, report(range(16, 20)), 0.0)
        made.report(B, report(range(20, 24)), 0.0)
        made.update_view(view(ME, C), True, 1.0)
        assert not plans(made.report(C, report(), 1.0))
        made.update_view(view(ME, B, C), True, 2.0)
        assert plans(made.report(B, report(range(20, 24)), 2.0))

    def test_a_proposal_is_final_whatever_becomes_of_the_members(self) -> None:
        made, _ = planned(*HALVES, electors=(ME, C, NEW))
        made.ready(ME, ready(), 1.0)
        made.ready(B, ready(), 1.0)
        assert made.report(B, report(IDS, seq=5), 2.0) == []
        assert made.ready(B, ready(digest=b"\1" * 32), 3.0) == []
        assert made.update_view(view(ME), True, 3.0) == []
        again = made.tick(10 * FORGET_S)  # said again, for it may have been lost
        assert set(proposals(again)) == {C, NEW}
        assert not plans(again)
        assert B in commits(made.vote(C, vote(voted=1), 400.0))
        assert made.next_deadline() is None

    def test_who_does_not_lead_any_more_still_closes_what_it_has_proposed(self) -> None:
        made, _ = planned(*HALVES, electors=(ME, C, NEW))
        made.ready(ME, ready(), 1.0)
        made.ready(B, ready(), 1.0)
        made.update_view(view(ME, B), False, 2.0)
        assert ME in commits(made.vote(C, vote(voted=1), 2.0))

    @pytest.mark.parametrize(
        ("sender", "message"),
        [
            (C, ready()),
            (B, ready(attempt=2)),
            (B, ready(attempt=0)),
            (B, Ready(STAGE, STEP + 1, 1, DIGEST, 0.0)),
        ],
    )
    def test_readiness_that_does_not_count(self, sender: PeerId, message: Ready) -> None:
        made, _ = planned(*HALVES)
        made.ready(ME, ready(), 1.0)
        assert made.ready(sender, message, 1.0) == []
        assert commits(made.ready(B, ready(), 1.0)) == [ME, B]

    @pytest.mark.parametrize(
        ("sender", "message"),
        [
            (B, vote()),  # no elector
            (C, vote(2)),
            (C, msgspec.structs.replace(vote(), step=STEP + 1)),
        ],
    )
    def test_votes_that_do_not_count(self, sender: PeerId, message: Vote) -> None:
        made, _ = planned(*HALVES, electors=(ME, C, NEW))
        made.vote(C, vote(), 0.5)  # nothing is proposed
        made.ready(ME, ready(), 1.0)
        made.ready(B, ready(), 1.0)
        assert made.vote(sender, message, 1.0) == []
        assert commits(made.vote(C, vote(), 1.0))

    def test_the_same_member_twice_is_not_two(self) -> None:
        made, _ = planned(*HALVES)
        assert made.ready(ME, ready(), 1.0) == []
        assert made.ready(ME, ready(), 1.0) == []


class TestHostileReports:
    def test_ids_beyond_the_step(self) -> None:
        made = leader(ME)
        for done, in_flight in ((b"\xff\x01", b""), (b"", b"\x00\x01")):
            message = LedgerReport(STAGE, STEP, 1, done, in_flight, 0)
            [effect] = made.report(C, message, 0.0)
            assert (effect.peer, effect.reason) == (C, "ledger-out-of-range")
            assert C not in made.reports

    def test_old_reports_do_not_replace_new_ones(self) -> None:
        made = leader(ME, B)
        made.report(B, report({20, 21}, seq=5), 0.0)
        for seq in (0, 4, 5):
            made.report(B, report(IDS, seq=seq), 0.0)
        assert made.reports[B].done == {20, 21}

    @pytest.mark.parametrize("step", [0, STEP - 1, STEP + 2])
    def test_reports_of_other_steps(self, step: int) -> None:
        made = leader(ME)
        assert made.report(ME, report(step=step), 0.0) == []
        assert not made.reports

    def test_strangers_reports_are_bounded_and_plan_nothing(self) -> None:
        made = leader(ME)
        for n in range(3 * MAX_REPORTS):
            made.report(peer_id_from_key(n.to_bytes(32, "big")), report(IDS), 0.0)
        assert len(made.reports) == MAX_REPORTS
        assert not plans(made.tick(1.0))

    def test_a_replica_of_another_version_is_no_member(self) -> None:
        made = leader(ME, B)
        made.update_view(view(ME, B, B=STEP + 1), True, 0.0)
        made.report(B, report(range(20, 24)), 0.0)
        assert not plans(made.report(ME, report(range(16, 20)), 0.0))


class TestRefusal:
    def test_a_refused_round_is_made_anew_at_once(self) -> None:
        made, order = planned(*HALVES)
        made.ready(ME, ready(), 1.0)
        again = plans(made.ready(B, ready(digest=REFUSED), 1.1))
        assert {plan.attempt for plan in again.values()} == {order.attempt + 1}
        assert set(again) == {ME, B}

    def test_not_for_ever(self) -> None:
        made, _ = planned(*HALVES)
        for attempt in range(1, MAX_REFUSALS + 1):
            made.ready(ME, ready(attempt), 1.0)
            assert plans(made.ready(B, ready(attempt, REFUSED), 1.0))
        assert not made.ready(B, ready(MAX_REFUSALS + 1, REFUSED), 1.0)
        assert not made.tick(1.0 + ANSWER_S)
        assert not made.tick(1.0 + FORGET_S), "an answer has come"
        assert plans(made.tick(1.0 + 2 * FORGET_S))

    def test_all_have_time_to_see_what_is_wrong_with_it(self) -> None:
        """Else an attempt shows one liar to one member, and the members do not agree who it is."""
        others = [peer_id_from_key(bytes([n]) * 32) for n in range(10, 14)]
        made, _ = planned((ME, IDS), *((peer, ()) for peer in others))
        assert not plans(made.ready(others[0], ready(digest=REFUSED), 1.0))
        assert made.next_deadline() == 1.0 + ANSWER_S
        assert not plans(made.tick(0.99 + ANSWER_S))
        assert plans(made.tick(1.0 + ANSWER_S))

    def test_who_refuses_twice_is_waited_for_until_somebody_goes(self) -> None:
        """What it refused may have come from that one."""
        made, _ = planned((ME, IDS), (B, ()), (C, ()))
        now = 1.0
        for attempt in (1, 2):
            assert ("refusal", C) not in made.awaited(None, now, leases=False)
            made.ready(C, ready(attempt, REFUSED), now)
            now += ANSWER_S
            made.tick(now)
        assert ("refusal", C) in made.awaited(None, now, leases=False)
        made.update_view(view(ME, C), True, 4.0)
        assert not {wait for wait in made.awaited(None, 4.0, leases=False) if wait[0] == "refusal"}

    def test_a_disagreement_counts_once_however_often_the_leader_looks(self) -> None:
        """The attempt after the refused ones is left to run out of time."""
        made, _ = planned(*HALVES)
        for attempt in range(1, MAX_REFUSALS + 1):
            made.ready(ME, ready(attempt), 1.0)
            made.ready(B, ready(attempt, REFUSED), 1.0)
        made.ready(ME, ready(MAX_REFUSALS + 1), 1.0)
        made.ready(B, ready(MAX_REFUSALS + 1, b"\1" * 32), 1.0)
        for tick in range(1, 5):
            made.tick(1.0 + tick)
        assert ("spoilt", B) not in made.awaited(None, 5.0, leases=False)

    def test_who_refuses_an_attempt_is_not_waited_for_in_it(self) -> None:
        made, _ = planned(*HALVES)
        for attempt in range(1, MAX_REFUSALS + 2):
            made.ready(ME, ready(attempt), 1.0)
            made.ready(B, ready(attempt, REFUSED), 1.0)
        assert ("ready", B) not in made.awaited(None, 1.0, leases=False)
        assert ("refusal", B) in made.awaited(None, 1.0, leases=False)


def test_legal_numbers_of_others_make_no_illegal_message_of_ours() -> None:
    """Members that say the most a message may hold: the member that adds it up would be blamed for
    the sum."""
    made, plan = planned(*HALVES)
    effects: list[object] = []
    for peer in (ME, B):
        said = Ready(STAGE, STEP, plan.attempt, DIGEST, MAX_NUMBER)
        effects += made.ready(peer, said, 1.0)
    said = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Commit)]
    [commit] = set(said)
    assert decode_message(encode_message(commit)) == commit


def test_an_owner_may_say_the_norm_of_what_codecs_let_through() -> None:
    largest = 2.0**47
    message = Reduced(STAGE, STEP, 1, 0, 2.0**40 * largest * largest)
    assert decode_message(encode_message(message)) == message


class TestWhatIsAwaited:
    """Who holds the step up, by what we see of it."""

    @staticmethod
    def followed(*shares: tuple[PeerId, LedgerReport]) -> RoundLeader:
        """One that does not lead, and has heard these of three that are at the step."""
        made = leader(ME, B, C)
        made.update_view(view(ME, B, C), False, 0.0)
        for peer, said in shares:
            made.report(peer, said, 0.0)
        return made

    def test_who_has_not_reported_is_awaited_by_the_leader(self) -> None:
        made = leader(ME, B, C)
        made.report(B, report(range(16, 20)), 0.0)
        assert made.awaited(None, 1.0, leases=False) == [("report", C)], "nobody awaits itself"

    def test_once_all_have_reported_it_is_whoever_still_has_work_of_the_step(self) -> None:
        made = leader(ME, B, C)
        made.report(ME, report(range(16, 20)), 0.0)
        made.report(B, report((), in_flight=range(20, 24)), 0.0)
        made.report(C, report(), 0.0)
        assert made.awaited(None, 1.0, leases=True) == [("lease", B)]
        assert made.awaited(None, 1.0, leases=False) == []
        made.report(ME, report((), seq=2), 0.0)
        assert made.awaited(None, 1.0, leases=True) == [("work", B)], "all of ours went to others"
        made.report(ME, report((), seq=3, in_flight=[16]), 0.0)
        assert made.awaited(None, 1.0, leases=True) == [], "we are late ourselves"

    def test_who_is_not_ready_is_awaited_while_a_plan_is_out(self) -> None:
        made, _ = planned(*HALVES)
        assert made.awaited(None, 1.0, leases=False) == [("ready", B)]
        made.ready(ME, ready(), 1.0)
        assert made.awaited(None, 1.0, leases=False) == [("ready", B)]

    def test_the_leader_is_awaited_with_its_report_and_then_with_its_plan(self) -> None:
        halves = (ME, report(range(16, 20))), (C, report(range(20, 24)))
        made = self.followed(*halves)
        assert made.awaited(B, 1.0, leases=False) == [("report", B)]
        assert made.awaited(None, 1.0, leases=False) == []
        made.report(B, report(), 0.0)
        assert made.awaited(B, 1.0, leases=False) == [("plan", B)]
        made.own = OwnPart(closed=True)
        assert made.awaited(B, 1.0, leases=False) == []
        made.own = OwnPart(returned=False)
        assert made.awaited(B, 1.0, leases=False) == []
        late = made.awaited(B, 1.0, leases=True)
        assert late == [("plan", B)], "nothing is in flight that it could wait for"

    def test_the_leader_is_not_to_blame_while_others_are_late(self) -> None:
        made = self.followed((ME, report(range(16, 20))))
        assert made.awaited(B, 1.0, leases=False) == [], "another one has not reported either"
        made.report(B, report(), 0.0)
        made.report(C, report((), in_flight=range(20, 24)), 0.0)
        assert made.awaited(B, 1.0, leases=False) == [], "the step is not complete"
        assert made.awaited(B, 1.0, leases=True) == [("lease", C)]
        made.update_view(view(ME, B, C, C=STEP - 1), False, 0.0)
        assert made.awaited(B, 1.0, leases=True) == [], "one is still at the step before"


def test_the_first_step_of_a_lineage_waits_a_moment_for_those_who_take_the_stage() -> None:
    """All begin at once; whoever is first is not to leave the others behind."""
    quorum = Quorum(ME, STAGE, None, electors=(ME, B))
    led = RoundLeader(Place(ME, STAGE, 2, PER_STEP), SIZE, STEP, quorum)
    seen = SwarmView.of([[], [Replica(ME, STEP, True), Replica(B, STEP, False)]])
    quorum.observe(seen, 0.0)
    led.update_view(seen, True, 0.0)
    led.report(ME, report(IDS), 0.0)
    assert short(B) in led.may_plan.reason
    assert led.next_deadline() == HEARD_S
    led.tick(HEARD_S - 0.1)
    assert led.proposer.state is State.IDLE
    led.tick(HEARD_S)
    assert led.proposer.state is State.ASKING
