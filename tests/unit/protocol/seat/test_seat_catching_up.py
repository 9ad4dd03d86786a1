"""A replica that is behind its siblings asks for the commit of its step, whose votes prove it; one
that cannot catch up takes its stage anew."""

from typing import Any

import pytest
from msgspec.structs import replace

from protocol.decree.decree import READY, VOTE, agreed, digest_of, encode_ballot
from protocol.decree.elector import MAX_COMMITS
from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.membership.contacts import Contacts
from protocol.pace import FORGET_S, LOOK_S, LOST_S
from protocol.pipeline.effects import ApplyTask, Fault, Outcome
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.seat.catching_up import ASKED, CatchingUp
from protocol.seat.effects import SeatEffect
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Commit, Message, Plan, Propose, Reduced, Vote
from protocol.wire.parts import Ballot, Decree, PlanMember, Promise
from protocol.wire.statement import Statement, encode_statement
from tests.support.decrees import commit_of, elector, signature
from tests.support.effects import sent as effects_sent
from tests.support.effects import tasks
from tests.support.seats import seat_of

STAGE, STEP = 1, 7
ME, SIBLING, OTHER, STRANGER = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
DIGEST = b"d" * 32
CROWD = [PeerId(f"sibling {n}") for n in range(2 * ASKED)]


class TestWhoIsAhead:
    """What a replica does about the siblings that say that they serve a later version."""

    def setup_method(self) -> None:
        self.following = CatchingUp(STAGE)

    def look(
        self, now: float, *ahead: PeerId, known: bool = False, alone: bool = False
    ) -> list[Send | Fault]:
        return self.following.look(ahead, (), STEP, now, known=known, alone=alone)

    def test_who_is_two_versions_ahead_beside_us_is_asked_too(self) -> None:
        beside = [PeerId("beside")]
        asked = [Send(beside[0], Propose(STAGE, STEP, 0))]
        for now in (0.0, LOOK_S):
            said = self.following.look((), beside, STEP, now, known=False, alone=False)
            assert said == asked
        assert not self.following.unanswered, "no sibling has left us behind"

    def test_and_does_not_answer(self) -> None:
        self.look(0.0, SIBLING)
        assert not self.following.unanswered
        self.look(LOOK_S / 2 - 0.01, SIBLING)
        assert not self.following.unanswered
        assert self.look(LOOK_S / 2, SIBLING) == [], "it is not asked more often"
        assert self.following.unanswered
        assert self.look(LOOK_S, SIBLING) != []
        assert self.following.unanswered
        self.look(LOOK_S + 0.1, SIBLING, known=True)
        assert not self.following.unanswered

    def test_and_not_any_more(self) -> None:
        self.look(0.0, SIBLING, alone=True)
        self.look(LOOK_S, SIBLING, alone=True)
        self.look(1.0)
        assert not self.following.unanswered
        assert self.look(FORGET_S, SIBLING, alone=True) != []
        assert not self.is_lost(FORGET_S + 1.0, alone=True)

    def is_lost(self, now: float, **how: bool) -> bool:
        effects = self.look(now, SIBLING, **how)
        return [e.kind for e in effects if isinstance(e, Fault)] == ["behind"]

    @pytest.mark.parametrize(("how", "patience_s"), [("known", LOST_S), ("alone", FORGET_S)])
    def test_who_cannot_apply_the_commit_or_gets_it_from_nobody_takes_its_stage_anew(
        self, how: str, patience_s: float
    ) -> None:
        assert not self.is_lost(0.0, **{how: True})
        assert not self.is_lost(patience_s - 0.1, **{how: True})
        assert self.is_lost(patience_s, **{how: True})
        assert not self.is_lost(patience_s + 0.1, **{how: True}), "once"

    def test_who_is_in_touch_with_the_electors_never_does(self) -> None:
        """Anybody may say that it serves a later version."""
        self.look(0.0, SIBLING, alone=True)
        assert not any(self.is_lost(10.0 * n) for n in range(1, 100))
        assert not self.is_lost(1000.0, alone=True), "its time begins again"


# --- in a seat ------------------------------------------------------------------------------


def seat(contacts: Contacts | None = None, *, serving: bool = True, **parts: Any) -> Seat:
    """A replica whose step ourselves, a sibling and a third one elect."""
    made = seat_of(
        Place(ME, STAGE, 2, 4),
        STEP,
        serving=serving,
        quorum=Quorum(ME, STAGE, contacts) if contacts else None,
        elector=elector(ME),
        **parts,
    )
    electors = [ME, SIBLING, OTHER]
    before = commit_of(STAGE, STEP - 1, 1, bytes(32), [ME, SIBLING], electors=electors)
    made.elector.take(before, checked=True)
    made.quorum.settle([ME, SIBLING], electors, STEP, 0.0)
    made.quorum.designated = SIBLING
    made.update_view(siblings(STEP), 0.0)
    return made


def siblings(version: int) -> SwarmView:
    stage = [Replica(ME, STEP, True), Replica(SIBLING, version, True)]
    return SwarmView.of([[Replica(OTHER, STEP, True, returned=True)], stage])


def commit(*by: PeerId, value: bytes = DIGEST, step: int = STEP) -> Commit:
    """The commit of the step's first attempt, with the votes of these."""
    decree = Decree(1, value, (ME, SIBLING), (ME, SIBLING, OTHER), 0.0)
    body = encode_statement(Statement(STAGE, 0, step, 1, agreed(decree)))
    signed = tuple(signature(peer, READY, body) for peer in (ME, SIBLING))
    decree = replace(decree, ready=signed)
    body = encode_ballot(Ballot(STAGE, 0, step, 1, SIBLING, 1, digest_of(decree)))
    votes = tuple((peer, signature(peer, VOTE, body)) for peer in by)
    return Commit(STAGE, step, 1, SIBLING, decree, votes)


def sent(effects: list[SeatEffect], kind: type[Message]) -> dict[PeerId, Message]:
    return dict(effects_sent(effects, kind))


def ready(made: Seat) -> bytes:
    """Follow the sibling's plan until we are Ready; return for which digest."""
    members = [PlanMember(ME, b""), PlanMember(SIBLING, b"\x0f")]
    order = Plan(STAGE, STEP, 1, members, [0, 0, 64], [])
    [contribute] = tasks(made.receive(SIBLING, order, 1.0))
    made.computed(contribute, Outcome(), 1.1)
    [decode] = tasks(made.receive(SIBLING, Reduced(STAGE, STEP, 1, 1, 1.0), 1.2, bytes(32)))
    made.computed(decode, Outcome(), 1.2)
    return made.member.ready


@pytest.mark.parametrize("sender", [SIBLING, OTHER, STRANGER])
def test_whoever_says_a_commit_its_votes_prove_it(sender: PeerId) -> None:
    for by, proven in (((SIBLING, OTHER), True), ((ME, SIBLING), True), ((SIBLING,), False)):
        made = seat()
        made.quorum.electors |= {PeerId("x"), PeerId("y")} if len(by) == 1 else frozenset()
        made.receive(sender, commit(*by), 1.0)
        assert made.member.knows_commit is proven


def test_votes_of_others_than_the_electors_and_forged_ones_prove_nothing() -> None:
    made = seat()
    made.receive(SIBLING, commit(STRANGER, *CROWD), 1.0)
    votes = commit(SIBLING, OTHER).votes
    decree = commit(value=bytes(32)).decree
    made.receive(SIBLING, Commit(STAGE, STEP, 1, SIBLING, decree, votes), 1.0)
    made.receive(SIBLING, Commit(STAGE, STEP, 2, SIBLING, commit().decree, votes), 1.0)
    assert not made.member.knows_commit


def test_a_commit_is_applied_though_its_leader_says_nothing_more() -> None:
    made = seat()
    said = commit(SIBLING, OTHER, value=ready(made))
    asked = sent(made.update_view(siblings(STEP + 1), 2.0), Propose)
    assert asked == {SIBLING: Propose(STAGE, STEP, 0)}
    [apply] = tasks(made.receive(OTHER, said, 2.1))
    for now in (2.1 + LOST_S, 9 * FORGET_S):
        effects = made.tick(now)
        assert not [e for e in effects if isinstance(e, Fault)], "the next version is on its way"
        assert not sent(effects, Propose)
    made.computed(apply, Outcome(hash="aa"), 10 * FORGET_S)
    assert made.step == STEP + 1
    assert made.elector.commit(STAGE, 0, STEP) == said


def test_who_has_closed_a_step_tells_its_commit_to_whoever_asks() -> None:
    made = seat()
    assert not sent(made.receive(SIBLING, Propose(STAGE, STEP, 0), 1.0), Commit)
    said = commit(SIBLING, OTHER, value=ready(made))
    made.receive(SIBLING, said, 2.0)
    for asking in (SIBLING, STRANGER):
        told = sent(made.receive(asking, Propose(STAGE, STEP, 0), 3.0), Commit)
        assert told == {asking: said}


@pytest.mark.parametrize("otherwise", [True, False])
def test_who_was_left_out_of_what_was_closed_takes_its_stage_anew_at_once(
    *, otherwise: bool
) -> None:
    made = seat()
    if otherwise:  # we are Ready for something else
        assert ready(made) != DIGEST
    effects = made.receive(SIBLING, commit(SIBLING, OTHER), 2.0)
    assert [e.kind for e in effects if isinstance(e, Fault)] == ["behind"]


@pytest.mark.parametrize(("version", "lost"), [(STEP, False), (STEP + 1, True)])
def test_out_of_touch_with_the_electors_one_that_names_a_version_is_not_enough(
    version: int, lost: bool
) -> None:
    """They may come back, and what is given up is not."""
    made = seat(Contacts())
    stage = [Replica(ME, STEP, True), Replica(SIBLING, version, True)]
    stage.append(Replica(STRANGER, STEP + 1, True))
    made.update_view(SwarmView.of([[Replica(OTHER, STEP, True)], stage]), 1.0)
    effects = [e for n in range(2 * int(FORGET_S)) for e in made.tick(1.0 + n)]
    assert any(isinstance(e, Fault) for e in effects) == lost


def test_where_nobody_tells_the_commit_the_next_leader_asks_the_electors() -> None:
    """One that closes its steps and keeps their commits to itself does not stop its stage."""
    made = seat()
    value = ready(made)
    made.update_view(siblings(STEP + 1), 2.0)
    assert not sent(made.tick(2.0), Propose)
    asked = sent([*made.tick(2.0 + LOOK_S), *made.tick(2.1 + LOOK_S)], Propose)
    assert set(asked) == {SIBLING, OTHER}
    question = asked[OTHER]
    assert question.decree is None
    told = commit(SIBLING, OTHER, value=value)
    made.receive(OTHER, told, 2.5)
    assert made.member.decree == told.decree


def test_it_completes_the_decree_for_which_they_have_voted() -> None:
    made = seat()
    decree = commit(value=ready(made)).decree
    made.update_view(siblings(STEP + 1), 2.0)
    ticks = [*made.tick(2.0 + LOOK_S), *made.tick(2.1 + LOOK_S)]
    [question, *_] = sent(ticks, Propose).values()
    at = question.attempt
    where = STAGE, 0, STEP, at, ME
    body = encode_ballot(Ballot(*where, 1, digest_of(decree)))
    said = Vote(STAGE, STEP, at, at, 1, decree, signature(OTHER, "promise", body))
    proposed = sent(made.receive(OTHER, said, 3.0), Propose)
    assert {m.decree for m in proposed.values() if isinstance(m, Propose)} == {decree}
    body = encode_ballot(Ballot(*where, at, digest_of(decree)))
    vote = Vote(STAGE, STEP, at, at, at, None, signature(OTHER, VOTE, body))
    effects = made.receive(OTHER, vote, 3.1)
    assert set(sent(effects, Commit)) == {SIBLING}, "other electors get it with the next proposal"
    assert [type(task) for task in tasks(effects)] == [ApplyTask]


# --- whose plans are followed ---------------------------------------------------------------


def promise(peer: PeerId, attempt: int, leader: PeerId, voted: int = 0) -> Promise:
    value = DIGEST if voted else b""
    body = encode_ballot(Ballot(STAGE, 0, STEP, attempt, leader, voted, value))
    return Promise(peer, voted, value, signature(peer, "promise", body))


@pytest.mark.parametrize(
    ("attempt", "promises", "followed"),
    [
        (1, [], True),
        (2, [], False),
        (2, [promise(SIBLING, 2, SIBLING)], False),
        (2, [promise(SIBLING, 2, SIBLING), promise(STRANGER, 2, SIBLING)], False),
        (2, [promise(SIBLING, 2, SIBLING), promise(OTHER, 2, SIBLING)], True),
        (3, [promise(SIBLING, 2, SIBLING), promise(OTHER, 2, SIBLING)], False),
        (2, [promise(SIBLING, 2, ME), promise(OTHER, 2, ME)], False),
        (2, [promise(SIBLING, 2, SIBLING, 1), promise(OTHER, 2, SIBLING)], False),
    ],
)
def test_a_plan_is_followed_if_its_attempt_is_its_leaders(
    attempt: int, promises: list[Promise], *, followed: bool
) -> None:
    made = seat()
    members = [PlanMember(ME, b""), PlanMember(SIBLING, b"\x0f")]
    by = tuple(promises)
    order = Plan(STAGE, STEP, attempt, members, [0, 0, 64], [], promises=by)
    made.receive(SIBLING, order, 1.0)
    assert (made.member.plan_followed is order) is followed


# --- who catches up, and who is absent --------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
def test_where_only_newcomers_are_left_what_they_say_keeps_one_from_serving(*, ahead: bool) -> None:
    made = seat(serving=False, proves=lambda _peer: False)
    stage = [Replica(ME, STEP, True), Replica(STRANGER, STEP + ahead, True)]
    made.update_view(SwarmView.of([[], stage]), 0.0)
    made.state_loaded(1.0)
    assert made.serving is not ahead


def test_an_observer_that_is_too_far_behind_takes_its_stage_anew() -> None:
    made = seat(serving=False)
    made.update_view(siblings(STEP + MAX_COMMITS), 1.0)
    made.receive(SIBLING, commit(SIBLING, step=STEP + 1), 1.0)
    made.state_loaded(1.0)
    for version, lost in ((STEP + MAX_COMMITS, False), (STEP + MAX_COMMITS + 1, True)):
        made.update_view(siblings(version), 2.0)
        effects = [e for now in (3.0, 3.0 + FORGET_S) for e in made.tick(now)]
        assert any(isinstance(e, Fault) for e in effects) is lost


@pytest.mark.parametrize(
    ("signers", "lost"), [((SIBLING,), False), ((ME, SIBLING), True)], ids=["one", "most"]
)
def test_who_is_shown_a_later_commit_of_its_electors_waits_no_longer_for_its_own(
    signers: tuple[PeerId, ...], *, lost: bool
) -> None:
    """Whoever is asked for a commit that nobody has any more tells its newest one."""
    teller, asked = seat(), Propose(STAGE, STEP, 0)
    for step in range(STEP, STEP + MAX_COMMITS + 2):
        teller.elector.take(commit(*signers, step=step), checked=True)
    [told] = sent(teller.receive(OTHER, asked, 1.0), Commit).values()
    assert told == commit(*signers, step=STEP + MAX_COMMITS + 1)
    made = seat()
    made.update_view(siblings(STEP + 3), 1.0)
    waited = [e for now in (1.0, 1.0 + LOST_S) for e in made.tick(now)]
    waited += made.receive(SIBLING, told, 1.0 + LOST_S)
    assert not any(isinstance(effect, Fault) for effect in waited), "somebody may have it"
    effects = made.tick(1.0 + LOST_S + LOOK_S)
    assert any(isinstance(effect, Fault) for effect in effects) == lost


def test_a_sibling_that_is_ahead_alone_is_named_where_its_stage_needs_it() -> None:
    """Nobody would set it aside otherwise, and the step could not be closed without it."""
    made = seat(Contacts())
    made.update_view(siblings(STEP + 2), 0.0)
    made.quorum.missing = (SIBLING,)
    assert SIBLING in made.status(1.0).missing
    made.update_view(siblings(STEP), 1.0)
    made.quorum.missing = (SIBLING,)
    assert SIBLING not in made.status(1.0).missing, "it is back"
