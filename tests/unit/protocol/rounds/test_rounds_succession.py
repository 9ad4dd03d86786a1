"""A leader that takes over: a decided attempt is completed, and nobody is wrongly left out."""

from __future__ import annotations

import msgspec

from protocol.effects import Send
from protocol.membership.contacts import Contacts
from protocol.pipeline.place import Place
from protocol.rounds.leader import (
    OwnPart,
    RoundLeader,
)
from protocol.rounds.patience import ROUND_TIMEOUT_S
from protocol.rounds.quorum import Quorum
from protocol.wire.messages import Commit, CommitAck
from tests.support.round_leaders import (
    DIGEST,
    IDS,
    ME,
    PER_STEP,
    SIZE,
    STAGE,
    STEP,
    B,
    C,
    commits,
    leader,
    plans,
    ready,
    ready_report,
    report,
    view,
)


class TestTakingOver:
    """A leader died when its members were Ready: it may have told the commit to another dead."""

    def test_the_attempt_for_which_all_are_ready_is_completed(self) -> None:
        made = leader(ME, B)
        made.report(ME, ready_report(3), 1.0)
        effects = list(made.report(B, ready_report(3), 1.0))
        assert not plans(effects)
        sent = [e.message for e in effects if isinstance(e, Send)]
        assert sent == [Commit(STAGE, STEP, 3, DIGEST, None)]
        assert commits(list(made.acknowledged(B, CommitAck(STAGE, STEP, 3)))) == [ME]

    def test_one_that_is_not_ready_proves_that_nothing_was_decided(self) -> None:
        made = leader(ME, B)
        made.report(ME, ready_report(3), 1.0)
        effects = list(made.report(B, report(range(20, 24), promised=3), 1.0))
        assert {plan.attempt for plan in plans(effects).values()} == {4}

    def test_an_attempt_of_its_own_that_it_has_not_decided_is_not_completed(self) -> None:
        """B is a member that never got the plan; nobody but us would hold what is committed."""
        made = leader(ME, B, C)
        for peer, done in ((ME, range(16, 20)), (B, range(20, 24)), (C, ())):
            made.report(peer, report(done), 0.0)
        made.ready(ME, ready(), 1.0)
        made.report(ME, msgspec.structs.replace(ready_report(1), seq=2), 1.0)
        effects = list(made.update_view(view(ME, B), True, 2.0))
        assert not commits(effects)
        assert {plan.attempt for plan in plans(effects).values()} == {2}

    def test_who_knows_the_commit_neither_plans_nor_completes(self) -> None:
        """A sibling has applied another attempt and died; we cannot apply it."""
        for own in (ready_report(3), report(IDS)):
            made = RoundLeader(Place(ME, STAGE, 2, PER_STEP), SIZE, STEP)
            knows = OwnPart(closed=True)
            made.update_view(view(ME), True, 0.0, knows)
            assert made.report(ME, own, 1.0, knows) == []
            assert made.tick(1.0 + ROUND_TIMEOUT_S, knows) == []

    def test_who_has_decided_follows_no_other_plan(self) -> None:
        """Nobody may know the commit yet but a member that is silent just now."""
        made = leader(ME, B)
        for peer, done in ((ME, range(16, 20)), (B, range(20, 24))):
            made.report(peer, report(done), 0.0)
        assert made.may_follow(2)
        made.ready(ME, ready(), 1.0)
        assert commits(list(made.ready(B, ready(), 1.0))) == [B]
        assert made.may_follow(1)
        assert not made.may_follow(2)
        assert not commits(list(made.acknowledged(C, CommitAck(STAGE, STEP, 2))))
        assert not made.may_follow(2), "C was not told"
        assert not commits(list(made.acknowledged(B, CommitAck(STAGE, STEP, 2))))
        assert made.may_follow(2), "B never applies what it was told, nor does anybody"

    def test_who_has_promised_a_later_attempt_decides_its_own_no_more(self) -> None:
        """The others may close the step with that one, and it is Ready for it."""
        for newest, told in ((1, [B]), (2, [])):
            made, part = leader(ME, B), OwnPart(promised=newest)
            for peer, done in ((ME, range(16, 20)), (B, range(20, 24))):
                made.report(peer, report(done), 0.0, part)
            made.ready(ME, ready(), 1.0, part)
            assert commits(list(made.ready(B, ready(), 1.0, part))) == told

    def test_different_digests_are_of_different_plans(self) -> None:
        made = leader(ME, B)
        made.report(ME, ready_report(3), 1.0)
        assert not commits(list(made.report(B, ready_report(3, b"\1" * 32), 1.0)))

    def test_a_siblings_word_alone_closes_no_step(self) -> None:
        made = leader(ME, B)
        made.report(ME, report(range(16, 20)), 1.0)
        assert not commits(list(made.report(B, ready_report(2**30), 1.0)))


class TestQuorum:
    def test_a_sibling_that_others_still_see_is_not_left_out(self) -> None:
        contacts = Contacts()
        contacts.said(1, 0.0)
        contacts.heard(B, (), (STAGE,), 1, 0.0)
        contacts.heard(C, (), (), 1, 0.0)
        quorum = Quorum(ME, STAGE, contacts)
        quorum.settle([ME, B], [ME, B, C], 0.0)
        made = RoundLeader(Place(ME, STAGE, 2, PER_STEP), SIZE, STEP, quorum)
        contacts.said(2, 3.0)
        contacts.said(3, 6.0)
        contacts.heard(C, (), (), 3, 6.0)
        made.update_view(view(ME), True, 6.0)  # our own link to B is gone
        assert not plans(list(made.report(ME, report(IDS), 6.1)))
        assert made.next_deadline() is not None, "it looks again"
        contacts.heard(C, (B,), (), 3, 7.0)
        assert set(plans(list(made.tick(7.1)))) == {ME}

    def test_who_comes_back_while_a_round_goes_on_is_a_member_of_the_next_attempt(self) -> None:
        """Its worker died, and it served again before the round without it was decided: that one
        could not be closed any more, and waited for its time limit."""
        contacts = Contacts()
        contacts.said(1, 0.0)
        contacts.heard(B, (), (STAGE,), 1, 0.0)
        contacts.heard(C, (), (), 1, 0.0)
        quorum = Quorum(ME, STAGE, contacts)
        quorum.settle([ME, B, C], [ME, B, C], 0.0)
        made = RoundLeader(Place(ME, STAGE, 2, PER_STEP), SIZE, STEP, quorum)
        made.update_view(view(ME, B), True, 0.1)
        made.report(ME, report(range(16, 20)), 0.1)
        first = plans(list(made.report(B, report(range(20, 24)), 0.2)))
        assert set(first) == {ME, B}
        contacts.heard(C, (), (STAGE,), 1, 0.3)
        assert not made.update_view(view(ME, B, C), True, 0.3), (
            "the round goes on as long as it can"
        )
        made.ready(ME, ready(), 0.4)
        assert not commits(list(made.ready(B, ready(), 0.4)))
        second = plans(list(made.report(C, report(), 0.5)))
        assert set(second) == {ME, B, C}
        assert second[C].attempt == first[B].attempt + 1
        for peer in (ME, B):
            assert not commits(list(made.ready(peer, ready(2), 0.6)))
        assert commits(list(made.ready(C, ready(2), 0.6)))
