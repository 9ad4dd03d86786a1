"""The leader: plans only what is complete, and proposes only what all agree on."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from client.lab.simulate.electing import UnsplitElector, UnsplitQuorum
from protocol.answer import YES, Answer, no
from protocol.decree.decree import agreed
from protocol.effects import Effect, Explain, Send
from protocol.ids import PeerId, peer_id_from_key, short
from protocol.limits import MAX_ATTEMPT, MAX_ATTEMPTS_PER_S, MAX_NUMBER, MAX_REPLICAS_IN_ROUND
from protocol.membership.contacts import Contacts
from protocol.pace import ANSWER_S, FORGET_S, HEARD_S, LOOK_S, LOST_S
from protocol.pipeline.ledger import from_bitmap, to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.leader import MAX_REPORTS, MOST_APART, RoundLeader
from protocol.rounds.proposer import State
from protocol.rounds.quorum import Quorum
from protocol.rounds.shards import check_bounds
from protocol.view import Replica, SwarmView
from protocol.wire.messages import (
    Admit,
    Commit,
    LedgerReport,
    Plan,
    Propose,
    Ready,
    Reduced,
    Vote,
    decode_message,
    encode_message,
)
from protocol.wire.parts import Decree
from tests.support.effects import sent
from tests.support.rounds import OwnReplica, leader_of, parts_of_leader

ME, B, C, NEW = sorted(peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP, PER_STEP, SIZE, STAGE = 2, 8, 1024, 1
IDS = frozenset(range(16, 24))
DIGEST = b"\7" * 32


def view(*peers: PeerId, version: int = STEP, **versions: int) -> SwarmView:
    """Serving replicas of our stage; ``B=1`` gives B another version than the rest."""
    names = {"ME": ME, "B": B, "C": C}
    others = {names[name]: v for name, v in versions.items()}
    ours = [Replica(peer, others.get(peer, version), True) for peer in peers]
    return SwarmView.of([[], ours])


class Led(RoundLeader):
    """A leader that is an elector of its step, too: that one answers at once."""

    def __init__(self, quorum: Quorum) -> None:
        self.own, self.elector = OwnReplica(ready=DIGEST), UnsplitElector()
        self.returned: Answer = YES
        place = Place(ME, STAGE, 2, PER_STEP)
        parts = parts_of_leader(
            place,
            quorum=quorum,
            elector=self.elector,
            member=self.own,
            returned=lambda: self.returned,
        )
        super().__init__(place, SIZE, STEP, **parts)
        before = Decree(1, DIGEST, (ME,), tuple(quorum.electors), 0.0)
        self.elector.take(Commit(STAGE, STEP - 1, 1, ME, before, ()), checked=True)

    def _answered(self, effects: list[Effect], now: float) -> list[Effect]:
        for asked in [e for e in effects if isinstance(e, Send) and e.peer == ME]:
            if isinstance(asked.message, Propose):
                answer = self.elector.answer(ME, asked.message)
                if isinstance(answer, Vote):
                    effects = [*effects, *self.vote(ME, answer, now)]
        return effects

    def _act(self, now: float) -> list[Effect]:
        return self._answered(super()._act(now), now)

    def join(self, joiner: PeerId, now: float) -> list[Effect]:
        """A newcomer asks for admission."""
        self.admissions.ask(joiner, now)
        return self.tick(now)

    def ready(self, sender: PeerId, message: Ready, now: float) -> list[Effect]:
        """Take a Ready that names the digest of the sums alone; we are Ready for ``DIGEST``."""
        if self._plan is not None:
            members = tuple(member.peer for member in self._plan.members)
            electors = tuple(self._plan.electors)
            decree = Decree(message.attempt, message.digest, members, electors, 0.0)
            message = replace(message, digest=agreed(decree))
        return super().ready(sender, message, now)


def leader(*peers: PeerId, electors: tuple[PeerId, ...] = (ME,)) -> Led:
    """One whose siblings are these; the decree before names them all, and designates us."""
    quorum = UnsplitQuorum(ME, STAGE)
    quorum.settle(peers, electors, STEP, 0.0)
    quorum.designated = ME
    made = Led(quorum)
    made.own.state = bytes.fromhex("ab")
    made.update_view(view(*peers), True, 0.0)
    return made


def report(
    done: object = (), *, seq: int = 1, step: int = STEP, promised: int = 0, in_flight: object = ()
) -> LedgerReport:
    bits = [to_bitmap(ids, step, PER_STEP) for ids in (done, in_flight)]
    return LedgerReport(STAGE, step, seq, bits[0], bits[1], promised)


def plans(effects: list[object]) -> dict[PeerId, Plan]:
    return dict(sent(effects, Plan))


def proposals(effects: list[object]) -> dict[PeerId, Propose]:
    return dict(sent(effects, Propose))


def commits(effects: list[object]) -> list[PeerId]:
    return [peer for peer, _ in sent(effects, Commit)]


def planned(
    *shares: tuple[PeerId, object], electors: tuple[PeerId, ...] = (ME,)
) -> tuple[Led, Plan]:
    """A leader whose plan is out."""
    made = leader(*(peer for peer, _ in shares), electors=electors)
    effects: list[object] = []
    for peer, done in shares:
        effects += made.report(peer, report(done), 0.0)
    sent = plans(effects)
    assert set(sent) == {peer for peer, _ in shares}
    return made, sent[shares[0][0]]


HALVES = ((ME, range(16, 20)), (B, range(20, 24)))


def ready(attempt: int = 1, digest: bytes = DIGEST, loss: float = 1.5) -> Ready:
    return Ready(STAGE, STEP, attempt, digest, loss)


def vote(
    attempt: int = 1, promised: int = 0, *, voted: int = 0, decree: Decree | None = None
) -> Vote:
    """An elector's answer; ``promised``: a later attempt makes it a refusal."""
    signature = b"" if promised > attempt else bytes(64)
    said = (attempt, promised or attempt, voted, decree)
    return Vote(STAGE, STEP, *said, signature=signature)


class TestPlanning:
    def test_a_complete_union_without_every_report_is_not_enough(self) -> None:
        """The silent one may hold doubles that it has to take out."""
        made = leader(ME, B)
        assert not plans(made.report(ME, report(IDS), 0.0))
        assert made.may_plan.reason == f"{short(B)} has not reported its ledger"
        assert set(plans(made.report(B, report(), 0.0))) == {ME, B}, "an idle one is a member, too"

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
        made = leader(ME, B)
        made.update_view(view(ME, B), False, 0.0)
        made.report(ME, report(IDS), 0.0)
        assert not plans([*made.report(B, report(), 0.0), *made.tick(1.0)])
        assert set(plans(made.update_view(view(ME, B), True, 2.0))) == {ME, B}

    def test_a_laggard_is_waited_for_but_not_for_ever(self) -> None:
        made = leader(ME, B)
        made.update_view(view(ME, B, B=STEP - 1), True, 0.0)
        assert not plans(made.report(ME, report(IDS), 0.0))
        assert not plans(made.tick(LOST_S - 0.1))
        assert made.may_plan.reason == f"{short(B)} still applies the step before"
        assert set(plans(made.tick(LOST_S))) == {ME}

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


def test_of_two_states_it_names_its_own() -> None:
    """Else the only sibling could say another one, and have the leader give up its state."""
    for state in (b"a", b"c"):
        made = leader(ME, B)
        made.own.state = b"b"
        made.report(ME, replace(report(range(16, 20)), state=b"b"), 0.0)
        effects = made.report(B, replace(report(range(20, 24)), state=state), 0.0)
        assert {plan.state for plan in plans(effects).values()} == {b"b"}


def test_what_the_dead_said_of_the_next_step_is_not_brought_back() -> None:
    """It may return with an empty ledger, and count from one again."""
    made = leader(ME, B)
    made.report(B, report(range(24, 28), seq=900, step=STEP + 1), 0.0)
    made.update_view(view(ME), True, 0.0)
    made.start_step(STEP + 1, 1.0)
    assert made.reports == {}
    made.update_view(view(ME, B, version=STEP + 1), True, 2.0)
    made.report(B, report(seq=1, step=STEP + 1), 2.0)
    assert made.reports[B].bits == 0


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

    def test_a_double_that_comes_or_goes_after_the_plan_was_made_voids_nothing(
        self,
    ) -> None:
        """One step in five was planned twice for such backups."""
        made, _ = planned(*HALVES)
        assert made.report(B, report({*range(20, 24), 16}, seq=2, promised=1), 0.5) == []
        made, _ = planned((ME, range(16, 20)), (B, range(19, 24)))
        assert made.report(ME, report(range(16, 19), seq=2, promised=1), 0.5) == []

    def test_a_round_that_hangs_is_planned_anew(self) -> None:
        made, plan = planned(*HALVES)
        assert not made.tick(FORGET_S - 0.1)
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

    @pytest.mark.parametrize(("ours", "theirs", "next_one"), [(1, 1, 2), (0, MAX_ATTEMPT, 1)])
    def test_a_seat_of_ours_plans_later_attempts_than_the_one_before_and_goes_by_no_other(
        self, ours: int, theirs: int, next_one: int
    ) -> None:
        made = leader(ME, B)
        made.report(B, report(range(20, 24), promised=theirs), 0.0)
        sent = plans(made.report(ME, report(range(16, 20), promised=ours), 0.0))
        assert sent[B].attempt == next_one

    def test_a_member_that_missed_the_plan_gets_it_again(self) -> None:
        made, plan = planned(*HALVES)
        late = report(range(20, 24), seq=2, promised=0)
        assert made.report(B, late, ANSWER_S + 0.1) == [Send(B, plan)]


class TestDecree:
    def test_what_all_are_ready_for_is_proposed_and_told_to_all_once_voted_for(self) -> None:
        made, plan = planned(*HALVES, electors=(ME, C, NEW))
        assert made.ready(ME, ready(), 1.0) == []
        asked = made.ready(B, ready(), 1.0)
        decree = Decree(1, DIGEST, (ME, B), tuple(plan.electors), 3.0, (b"", b""))
        assert proposals(asked) == dict.fromkeys(
            sorted((ME, C, NEW)), Propose(STAGE, STEP, 1, decree, before=made._before())
        )
        assert not commits(asked), "one of three is no majority"
        made.tick(1.1)
        missing = ", ".join(map(short, sorted((C, NEW))))
        assert made.may_plan.reason == f"waiting for the votes of {missing}"
        told = made.vote(C, vote(voted=1), 2.0)
        assert commits(told) == [ME, B], "other electors get it with the next proposal"
        [commit] = {e.message for e in told if isinstance(e, Send)}
        assert (commit.attempt, commit.leader, commit.decree) == (1, ME, decree)
        assert [peer for peer, _ in commit.votes] == sorted((ME, C))
        assert decode_message(encode_message(commit)) == commit
        assert made.vote(NEW, vote(voted=1), 2.1) == []

    def test_nothing_is_proposed_while_too_few_are_heard(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made, _ = planned(*HALVES, electors=(ME, C, NEW))
        made.ready(ME, ready(), 1.0)
        with monkeypatch.context() as split:
            split.setattr(Quorum, "may_go_on_without", lambda *_: no("we hear too few"))
            assert not proposals(made.ready(B, ready(), 1.0))
        assert made.refused == "we hear too few"
        assert proposals(made.tick(1.0 + LOOK_S))

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
        # a view puts off the seat's next tick: what may have been lost is said again all the same
        for again in (made.update_view(view(ME), True, 3.0), made.tick(10 * FORGET_S)):
            assert set(proposals(again)) == {C, NEW}
            assert not plans(again)
        assert B in commits(made.vote(C, vote(voted=1), 400.0))

    @pytest.mark.parametrize(
        ("sender", "message"),
        [
            (C, ready()),
            (ME, ready()),  # again
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
        assert made.reports[B].bits == 0b110000

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


class TestDifferentGradients:
    @staticmethod
    def apart(digest: bytes = b"\1" * 32, attempts: int = MOST_APART + 1) -> Led:
        """One in so many of whose attempts B was Ready with another digest."""
        made, _ = planned(*HALVES)
        for attempt in range(1, attempts + 1):
            made.ready(ME, ready(attempt), 1.0)
            made.ready(B, ready(attempt, digest), 1.0)
        return made

    def test_it_is_planned_anew_at_once_but_not_for_ever(self) -> None:
        made = self.apart(attempts=MOST_APART)
        made.ready(ME, ready(MOST_APART + 1), 1.0)
        assert not made.ready(B, ready(MOST_APART + 1, b"\1" * 32), 1.0)
        assert not made.tick(1.0 + FORGET_S), "an answer has come"
        assert plans(made.tick(1.0 + 2 * FORGET_S))

    def test_of_two_that_differ_the_other_has_spoilt_it(self) -> None:
        for other in (b"\1" * 32, b"\2" * 32):
            once, often = self.apart(other, 1), self.apart(other)
            assert ("spoilt", B) not in once.awaited(None, 5.0, leases=False)
            assert ("spoilt", B) in often.awaited(None, 5.0, leases=False)


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
    norm = 2.0**40 * 2.0**47 * 2.0**47  # of what codecs let through
    for message in (commit, Reduced(STAGE, STEP, 1, 0, norm)):
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
        made.own.knows_commit = True
        assert made.awaited(B, 1.0, leases=False) == []
        made.own.knows_commit, made.returned = False, no("not all gradients")
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
        late = made.awaited(B, 1.0, leases=True)
        assert late == [("behind", B)], "one is still at the step before: it may wait for that"
        made.update_view(view(ME, B, C, B=STEP - 1), False, 0.0)
        assert made.awaited(B, 1.0, leases=False) == [], "the step is not complete"
        made.report(C, report(range(20, 24), seq=2), 0.0)
        assert made.awaited(B, 1.0, leases=False) == [("behind", B)], "the leader itself is"


def test_the_first_step_of_a_lineage_waits_a_moment_for_those_who_take_the_stage() -> None:
    """All begin at once; whoever is first is not to leave the others behind."""
    quorum = UnsplitQuorum(ME, STAGE, (ME, B))
    led = leader_of(Place(ME, STAGE, 2, PER_STEP), SIZE, STEP, quorum=quorum)
    seen = SwarmView.of([[], [Replica(ME, STEP, True), Replica(B, STEP, False)]])
    quorum.observe(seen, 0.0)
    led.update_view(seen, True, 0.0)
    led.report(ME, report(IDS), 0.0)
    assert led.may_plan.reason == f"{short(B)} may take the stage, too, as the run begins"
    led.tick(HEARD_S - 0.1)
    assert led.proposer.state is State.IDLE
    led.tick(HEARD_S)
    assert led.proposer.state is State.ASKING


# --- newcomers ---------------------------------------------------------------------------------


def test_an_admitted_peer_observes_the_next_round() -> None:
    made = leader(ME)
    made.join(NEW, 0.0)
    sent = plans(made.report(ME, report(IDS), 1.0))
    assert set(sent) == {ME, NEW}
    assert sent[ME].observers == [NEW]
    assert set(commits(made.ready(ME, ready(), 1.0))) == {ME, NEW}, "it hears of the commit"


def test_who_is_still_applying_becomes_a_donor_too() -> None:
    made = leader()
    made.update_view(view(ME, B, B=STEP - 1), True, 0.0)
    assert sent(made.join(NEW, 0.0), Admit) == []
    admitted = sent(made.update_view(view(ME, B), True, 0.5), Admit)
    assert {peer for peer, _ in admitted} == {ME, B, NEW}, "everybody hears of it"
    assert set(admitted[0][1].donors) == {ME, B}
    assert (admitted[0][1].version, admitted[0][1].state) == (STEP, made.own.state)


def test_a_crowd_does_not_make_a_plan_that_nobody_can_read() -> None:
    joiners, fetching = (
        [peer_id_from_key(n.to_bytes(32, "big")) for n in range(first, first + 40)]
        for first in (1000, 2000)
    )
    made = leader(ME)
    for joiner in joiners:
        made.join(joiner, 0.0)
    crowd = [Replica(peer, STEP, False) for peer in [*fetching, joiners[0]]]
    made.update_view(SwarmView.of([[], [Replica(ME, STEP, True), *crowd]]), True, 1.0)
    sent = plans(made.report(ME, report(IDS), 1.0))
    assert decode_message(encode_message(sent[ME])) == sent[ME]
    assert joiners[0] in sent, "who was let in and fetches goes first"


def test_only_so_many_are_let_in_as_a_round_may_have() -> None:
    joiners = [peer_id_from_key(n.to_bytes(32, "big")) for n in range(1000, 1040)]
    made = leader(ME, B)
    admitted = [peer for peer in joiners if sent(made.join(peer, 0.0), Admit)]
    assert admitted == joiners[: MAX_REPLICAS_IN_ROUND - 2]
    assert sent(made.tick(FORGET_S), Admit) == []
    assert sent(made.join(joiners[-1], FORGET_S + 0.1), Admit)


def test_nobody_is_admitted_to_a_state_that_the_leader_cannot_name_or_that_serves_already() -> None:
    made = leader(ME, B)
    made.own.state = b""
    assert sent([*made.join(NEW, 0.0), *made.join(B, 0.0)], Admit) == []
    made.own.state = bytes.fromhex("ab")
    admits = [admit for _, admit in sent(made.tick(1.0), Admit)]
    assert {(admit.joiner, admit.state) for admit in admits} == {(NEW, made.own.state)}


# --- a leader that takes over ------------------------------------------------------------------


EARLIER = Decree(1, b"\1" * 32, (ME, B), (ME, B, C), 3.0, (b"", b""))
"""What the leader that is lost has proposed."""


def successor(*electors: PeerId) -> Led:
    """One that takes over, and has asked the electors."""
    made = leader(ME, B, electors=electors or (ME, B, C))
    made.proposer.start_step(STEP)
    made._quorum.designated = NEW  # it was the leader, and is lost
    made.report(ME, report(range(16, 20)), 0.0)
    asked = made.report(B, report(range(20, 24)), 0.0)
    assert set(proposals(asked).values()) == {Propose(STAGE, STEP, 2, before=made._before())}
    assert not plans(asked)
    asked_for = made.may_plan.reason.removeprefix("waiting for what ")
    assert asked_for.endswith(" may have voted for")
    return made


class TestTakingOver:
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
        assert made.may_plan.reason == "another leader has the step"
        again_at = 1.0 + LOOK_S
        asked = proposals(made.tick(again_at))
        assert {said.attempt for said in asked.values()} == {10}
        assert plans(made.vote(C, vote(10), again_at))[B].attempt == 10

    def test_one_elector_alone_does_not_stop_it(self) -> None:
        made = successor()
        for _ in range(9):
            made.vote(B, vote(2, 9), 1.0)
        assert plans(made.vote(C, vote(2), 1.1))[B].attempt == 2
        assert not made.tick(1.9), "it asks no more"
        made.ready(ME, ready(2), 2.0)
        made.ready(B, ready(2), 2.0)
        made.vote(B, vote(2, 9), 2.1)
        assert ME in commits(made.vote(C, vote(2, voted=2), 2.2))

    def test_a_refusal_counts_once_the_others_have_not_answered(self) -> None:
        made = successor()
        made.vote(B, vote(2, 9), 0.1)  # C is cut off
        assert not made.tick(ANSWER_S - 0.1)
        assert not made.tick(ANSWER_S)
        asked = proposals(made.tick(ANSWER_S + LOOK_S))
        assert {said.attempt for said in asked.values()} == {10}

    def test_who_is_refused_while_a_plan_is_out_plans_anew(self) -> None:
        made = successor()
        made.vote(C, vote(2), 1.0)
        made.ready(ME, ready(2), 2.0)
        made.ready(B, ready(2), 2.0)
        for elector in (B, C):
            made.vote(elector, vote(2, 5), 2.1)
        assert made.restarts["leader changed"] == 1
        at = 2.1 + LOOK_S
        effects = [*made.tick(at), *made.vote(C, vote(6), at)]
        completed = {said.decree for said in proposals(effects).values() if said.decree}
        assert {decree.digest for decree in completed} == {DIGEST}, "we had voted for it"

    @pytest.mark.parametrize("promised", [MAX_ATTEMPTS_PER_S, MAX_ATTEMPT - 1, MAX_ATTEMPT])
    def test_a_lie_about_attempts_does_not_exhaust_them(self, promised: int) -> None:
        made = successor()
        for _ in range(100):
            made.vote(B, vote(2, promised), 1.0)
            made.vote(C, vote(2, promised), 1.0)
        asked = proposals(made.tick(100.0))
        assert 2 < asked[B].attempt <= MAX_ATTEMPTS_PER_S + 3
        assert decode_message(encode_message(asked[B])) == asked[B]

    def test_who_has_promised_far_above_the_rest_is_reached_in_the_end(self) -> None:
        made, promised, now = successor(), 5 * MAX_ATTEMPTS_PER_S, 1.0
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
        made.own.knows_commit = bound.own.knows_commit = True
        made.update_view(view(ME), True, 0.0)
        assert made.report(ME, report(IDS), 1.0) == []
        assert made.tick(1.0 + FORGET_S) == []
        assert bound.vote(C, vote(2, voted=1, decree=EARLIER), 1.0) == []


class TestQuorum:
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
