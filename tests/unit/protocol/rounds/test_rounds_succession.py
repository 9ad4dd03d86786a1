"""A leader that takes over: what may be decreed is completed, and nobody is wrongly left out."""

from __future__ import annotations

import pytest

from protocol.effects import Explain
from protocol.ids import PeerId, peer_id_from_key
from protocol.limits import MAX_ATTEMPT, MAX_ATTEMPTS_MISSED
from protocol.membership.contacts import LOST_AFTER_S, Contacts
from protocol.pace import ANSWER_S, FORGET_S, LOOK_S
from protocol.rounds.leader import OwnPart
from protocol.rounds.quorum import Quorum
from protocol.wire.messages import Propose, decode_message, encode_message
from protocol.wire.parts import Decree
from tests.support.round_leaders import (
    DIGEST,
    IDS,
    ME,
    NEW,
    STAGE,
    STEP,
    B,
    C,
    Led,
    commits,
    leader,
    plans,
    proposals,
    ready,
    report,
    view,
    vote,
)

EARLIER = Decree(1, b"\1" * 32, (ME, B), (ME, B, C), 3.0, (b"", b""))
"""What the leader that is lost has proposed."""


def successor(*electors: PeerId) -> Led:
    """One that takes over, and has asked the electors."""
    made = leader(ME, B, electors=electors or (ME, B, C))
    made.proposer.start_step(STEP, 0)
    made._quorum.designated = NEW  # it was the leader, and is lost
    made.report(ME, report(range(16, 20)), 0.0)
    asked = made.report(B, report(range(20, 24)), 0.0)
    assert set(proposals(asked).values()) == {Propose(STAGE, STEP, 2)}
    assert not plans(asked)
    return made


class TestTakingOver:
    def test_it_plans_once_a_majority_has_voted_for_nothing(self) -> None:
        made = successor()
        assert made.may_plan.reason.startswith("waiting for what")
        sent = plans(made.vote(C, vote(2), 1.0))
        assert set(sent) == {ME, B}
        assert sent[B].attempt == 2

    def test_what_an_elector_has_voted_for_is_completed(self) -> None:
        made = successor()
        effects = made.vote(C, vote(2, voted=1, decree=EARLIER), 1.0)
        assert not plans(effects)
        asked = proposals(effects)
        assert set(asked) == {ME, B, C}
        assert {said.decree for said in asked.values()} == {EARLIER}
        assert [promise.voted for promise in asked[B].promises] == [0, 1]
        assert any(isinstance(effect, Explain) for effect in effects)
        told = made.vote(B, vote(2, voted=2), 1.1)
        assert set(commits(told)) == {ME, B, C}

    def test_of_several_votes_the_latest_binds(self) -> None:
        fifth = peer_id_from_key(bytes(31) + b"5")
        made = successor(ME, B, C, NEW, fifth)
        later = Decree(3, b"\3" * 32, (ME, B), (ME, B, C), 3.0, (b"", b""))
        for elector in (B, C, NEW):
            made.vote(elector, vote(2, 3), 1.0)
        assert {said.attempt for said in proposals(made.tick(9.0)).values()} == {4}
        assert not made.vote(B, vote(4, voted=3, decree=later), 9.1)
        effects = made.vote(C, vote(4, voted=1, decree=EARLIER), 9.1)
        assert {said.decree for said in proposals(effects).values()} == {later}

    def test_who_is_refused_leaves_the_step_to_another_for_a_while(self) -> None:
        made = successor()
        assert made.vote(B, vote(2, 9), 1.0) == []
        assert not made.vote(C, vote(2, 9), 1.0)
        assert not made.tick(1.0 + LOOK_S / 2)
        again_at = made.next_deadline()
        assert 1.0 + LOOK_S / 2 < again_at < 3.0
        asked = proposals(made.tick(again_at))
        assert {said.attempt for said in asked.values()} == {10}
        assert plans(made.vote(C, vote(10), again_at))[B].attempt == 10

    def test_one_elector_alone_does_not_stop_it(self) -> None:
        made = successor()
        for _ in range(9):
            made.vote(B, vote(2, 9), 1.0)
        assert plans(made.vote(C, vote(2), 1.1))[B].attempt == 2
        made.ready(ME, ready(2), 2.0)
        made.ready(B, ready(2), 2.0)
        made.vote(B, vote(2, 9), 2.1)
        assert ME in commits(made.vote(C, vote(2, voted=2), 2.2))

    def test_a_refusal_counts_once_the_others_have_not_answered(self) -> None:
        made = successor()
        made.vote(B, vote(2, 9), 0.1)  # C is cut off
        assert not made.tick(ANSWER_S - 0.1)
        assert not made.tick(ANSWER_S)
        asked = proposals(made.tick(made.next_deadline() or 0.0))
        assert {said.attempt for said in asked.values()} == {10}

    def test_who_is_refused_while_a_plan_is_out_plans_anew(self) -> None:
        made = successor()
        made.vote(C, vote(2), 1.0)
        made.ready(ME, ready(2), 2.0)
        made.ready(B, ready(2), 2.0)
        for elector in (B, C):
            made.vote(elector, vote(2, 5), 2.1)
        assert made.restarts["leader changed"] == 1
        at = made.next_deadline()
        effects = [*made.tick(at), *made.vote(C, vote(6), at)]
        completed = {said.decree for said in proposals(effects).values() if said.decree}
        assert {decree.digest for decree in completed} == {DIGEST}, "we had voted for it"

    @pytest.mark.parametrize("promised", [MAX_ATTEMPTS_MISSED, MAX_ATTEMPT - 1, MAX_ATTEMPT])
    def test_a_lie_about_attempts_does_not_exhaust_them(self, promised: int) -> None:
        made = successor()
        for _ in range(100):
            made.vote(B, vote(2, promised), 1.0)
            made.vote(C, vote(2, promised), 1.0)
        asked = proposals(made.tick(100.0))
        assert 2 < asked[B].attempt <= MAX_ATTEMPTS_MISSED + 3
        assert decode_message(encode_message(asked[B])) == asked[B]

    def test_who_has_promised_far_above_the_rest_is_reached_in_the_end(self) -> None:
        made, promised, now = successor(), 5 * MAX_ATTEMPTS_MISSED, 1.0
        while made.proposer.attempt <= promised:
            attempt = made.proposer.attempt
            for elector in (B, C):
                made.vote(elector, vote(attempt, promised), now)
            now += 100.0
            assert made.tick(now), "it asks again"
            assert made.proposer.attempt > attempt
        assert plans(made.vote(C, vote(made.proposer.attempt), now))

    def test_who_knows_the_commit_neither_plans_nor_completes(self) -> None:
        """A sibling has applied another attempt and died; we cannot apply it."""
        made, bound = leader(), successor()
        made.own = bound.own = OwnPart(closed=True)
        made.update_view(view(ME), True, 0.0)
        assert made.report(ME, report(IDS), 1.0) == []
        assert made.tick(1.0 + FORGET_S) == []
        assert bound.vote(C, vote(2, voted=1, decree=EARLIER), 1.0) == []


class TestQuorum:
    def test_a_sibling_is_left_out_once_we_have_lost_it(self) -> None:
        contacts = Contacts()
        contacts.said(1, 0.0)
        contacts.heard(B, (STAGE,), 1, 0.0)
        quorum = Quorum(ME, STAGE, contacts)
        quorum.settle([ME, B], [ME, C], STEP, 0.0)
        made = Led(quorum)
        contacts.said(3, 3.0)
        contacts.heard(C, (), 3, 3.0)
        made.update_view(view(ME), True, 3.0)
        assert not plans(made.report(ME, report(IDS), 3.1))
        assert made.next_deadline() is not None, "it looks again"
        contacts.heard(C, (), 3, LOST_AFTER_S)
        assert set(plans(made.tick(LOST_AFTER_S + 0.1))) == {ME}

    def test_who_comes_back_while_a_round_goes_on_is_a_member_of_the_next_attempt(self) -> None:
        """Its worker died, and it served again before the round without it was decided: that one
        could not be closed any more, and waited for its time limit."""
        contacts = Contacts()
        contacts.said(1, 0.0)
        contacts.heard(B, (STAGE,), 1, 0.0)
        contacts.heard(C, (), 1, 0.0)
        quorum = Quorum(ME, STAGE, contacts)
        quorum.settle([ME, B, C], [ME, B, C], STEP, 0.0)
        made = Led(quorum)
        made.update_view(view(ME, B), True, 0.1)
        made.report(ME, report(range(16, 20)), 0.1)
        first = plans(made.report(B, report(range(20, 24)), 0.2))
        assert set(first) == {ME, B}
        contacts.heard(C, (STAGE,), 1, 0.3)
        assert not made.update_view(view(ME, B, C), True, 0.3), (
            "the round goes on as long as it can"
        )
        made.ready(ME, ready(), 0.4)
        assert not proposals(made.ready(B, ready(), 0.4))
        assert proposals(made.report(C, report(), 0.5))
        second = plans(made.vote(B, vote(2), 0.5))
        assert set(second) == {ME, B, C}
        assert second[C].attempt == first[B].attempt + 1
        for peer in (ME, B):
            assert not proposals(made.ready(peer, ready(2), 0.6))
        assert set(proposals(made.ready(C, ready(2), 0.6))) == {ME, B, C}
        assert set(commits(made.vote(B, vote(2, voted=2), 0.7))) == {ME, B, C}
