"""What an elector votes for, and what it never does after that."""

import pytest
from msgspec.structs import replace

from client.lab.simulate.electing import UnsplitElector, UnsplitQuorum
from protocol.decree.decree import (
    READY,
    VOTE,
    agreed,
    bound_by,
    designated,
    digest_of,
    encode_ballot,
    is_majority,
)
from protocol.decree.elector import MAX_COMMITS, Elector, Term
from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.limits import MAX_ATTEMPT, MAX_ATTEMPTS_PER_S
from protocol.pace import ANSWER_S
from protocol.rounds.proposer import Proposer, State
from protocol.wire.messages import Commit, Propose, Vote
from protocol.wire.parts import Ballot, Decree, Promise
from protocol.wire.statement import Statement, encode_statement
from tests.support.decrees import commit_of, elector, show, signature, verify

A, B, C, D, E = map(PeerId, "ABCDE")
STAGE, ERA, STEP = 1, 7, 5


def decree(
    of: PeerId = A, attempt: int = 1, electors: str = "ABC", members: str = "AB", step: int = STEP
) -> Decree:
    """A decree for which all members have signed that they are Ready."""
    made = Decree(attempt, of.encode() * 32, tuple(members), tuple(electors), 0.0)
    body = encode_statement(Statement(STAGE, ERA, step, attempt, agreed(made)))
    return replace(made, ready=tuple(signature(PeerId(peer), READY, body) for peer in members))


class Swarm:
    """Electors, each of which knows the commit of the step before, and leaders that ask them."""

    def __init__(self, peers: str = "ABC", electors: str = "ABC") -> None:
        self.electors = {PeerId(peer): elector(PeerId(peer)) for peer in peers}
        self.named = tuple(map(PeerId, electors))
        for one in self.electors.values():
            show(one, first=lambda _era, step: self.named if step == STEP - 1 else ())
        first = self.proposer(A, STEP - 1)
        self.say(A, first.ask(0.0), first)
        assert first.state is State.FREE
        of_all = decree(A, first.attempt, electors, "AB", STEP - 1)
        self.say(A, first.propose(of_all, 0.0), first)
        self.before = first.commit()
        for one in self.electors.values():
            one.take(self.before, checked=True)

    def proposer(self, me: PeerId, step: int = STEP) -> Proposer:
        quorum = UnsplitQuorum(me, STAGE, self.named)
        if step == STEP:
            quorum.settle("AB", self.named, step, 0.0)
        made = Proposer(quorum, ERA, verify, lambda _decree: (), lambda: None)
        made.start_step(step)
        return made

    def say(self, leader: PeerId, sends: list[Send], proposer: Proposer, to: str = "ABCDE") -> None:
        """Let what a leader says reach some electors, and their answers reach the leader."""
        for send in sends:
            if send.peer in to and isinstance(send.message, Propose):
                answer = self.electors[send.peer].answer(leader, send.message)
                if isinstance(answer, Vote):
                    proposer.vote(send.peer, answer, 0.0)


@pytest.fixture
def swarm() -> Swarm:
    return Swarm()


def leaders() -> tuple[PeerId, PeerId]:
    """The designated leader of the step, and the other member."""
    one = designated("AB", STAGE, STEP)
    return one, B if one == A else A


def test_nobody_else_has_the_first_attempt(swarm: Swarm) -> None:
    first, other = leaders()
    asked = Propose(STAGE, STEP, 1, decree(other), era=ERA)
    answer = swarm.electors[C].answer(other, asked)
    assert answer.promised > 1
    assert not answer.signature
    assert isinstance(swarm.electors[C].answer(first, replace(asked, decree=decree(first))), Vote)


@pytest.mark.parametrize("stage", [STAGE, STAGE + 1])
def test_who_was_not_told_that_the_step_before_is_closed_learns_it_from_the_leader(
    swarm: Swarm, stage: int
) -> None:
    leader, voter = leaders()[0], elector(C)
    show(voter, first=lambda _era, step: swarm.named if step == STEP - 1 else ())
    asked = Propose(STAGE, STEP, 1, decree(leader), before=swarm.before, era=ERA)
    assert not isinstance(voter.answer(leader, replace(asked, before=None)), Vote)
    answer = voter.answer(leader, replace(asked, before=replace(swarm.before, stage=stage)))
    assert isinstance(answer, Vote) == (stage == STAGE)
    assert voter.commit(STAGE, ERA, STEP - 1) == (swarm.before if stage == STAGE else None)


def test_a_leader_gets_votes_for_one_decree_in_an_attempt(swarm: Swarm) -> None:
    first, other = leaders()
    asked = Propose(STAGE, STEP, 1, decree(first), era=ERA)
    assert swarm.electors[C].answer(first, asked).signature
    assert not swarm.electors[C].answer(first, replace(asked, decree=decree(other))).signature
    assert swarm.electors[C].answer(first, asked).signature, "it may not have heard the answer"


def test_a_promise_is_said_again_and_none_of_an_earlier_attempt(swarm: Swarm) -> None:
    asker, voter = leaders()[0], swarm.electors[C]
    asked = Propose(STAGE, STEP, 3, era=ERA)
    assert voter.answer(asker, asked).signature
    assert not voter.answer(asker, replace(asked, attempt=2)).signature
    assert voter.answer(asker, asked).signature, "it may not have heard the answer"


def test_only_those_that_have_not_answered_are_asked_again(swarm: Swarm) -> None:
    _, other = leaders()
    asking = swarm.proposer(other)
    swarm.say(other, asking.ask(0.0), asking, to="C")
    assert {send.peer for send in asking.tick(ANSWER_S)} == {A, B}


def test_a_liar_cannot_propose_what_the_promises_do_not_allow(swarm: Swarm) -> None:
    first, other = leaders()
    leading, liar = swarm.proposer(first), swarm.proposer(other)
    leading.ask(0.0)
    swarm.say(first, leading.propose(decree(first), 0.0), leading)
    assert leading.commit() is not None
    bare = Propose(STAGE, STEP, 9, decree(other), era=ERA)
    answer = swarm.electors[C].answer(other, bare)
    assert not answer.signature, "nobody has promised it that"
    swarm.say(other, liar.ask(0.0), liar)
    assert liar.state is State.BOUND
    forged = Propose(STAGE, STEP, liar.attempt, decree(other), liar.promises, era=ERA)
    answer = swarm.electors[C].answer(other, forged)
    assert not answer.signature, "they are bound to another decree"
    stolen = replace(forged, decree=decree(first))
    assert not swarm.electors[C].answer(E, stolen).signature


def test_what_may_be_older_than_its_word_takes_no_part(swarm: Swarm) -> None:
    first, _ = leaders()
    again = elector(C)
    again.load(swarm.electors[C].terms)
    again.bar(ERA)
    assert again.answer(first, Propose(STAGE, STEP, 2, era=ERA)) is None
    asks = Propose(STAGE, STEP, 0, era=ERA)
    assert again.answer(first, Propose(STAGE, STEP + 1, 2, era=ERA)) == asks
    show(again, first=lambda _era, _step: "ABC")
    later = Propose(STAGE, STEP + 1, 2, era=ERA + 1)
    assert isinstance(again.answer(first, later), Vote), "of later lineages it has said nothing"
    again = elector(C)
    again.bar(ERA)
    show(again, proves={A, B, C}.__contains__)
    again.take(swarm.before)
    moved_on = again.answer(first, Propose(STAGE, STEP, 2, era=ERA))
    assert isinstance(moved_on, Vote), "a commit shows that what it may have said is over"


def test_a_commit_counts_by_the_votes_of_those_named_before(swarm: Swarm) -> None:
    first, other = leaders()
    forged = Commit(STAGE, STEP, 1, E, decree(E), ((D, bytes(64)), (E, bytes(64))), era=ERA)
    voter = swarm.electors[C]
    voter.take(forged)
    assert voter.commit(STAGE, ERA, STEP) is None
    body_of = swarm.proposer(first)
    body_of.ask(0.0)
    swarm.say(first, body_of.propose(decree(first), 0.0), body_of)
    true = body_of.commit()
    voter.take(replace(true, decree=decree(other)))
    assert voter.commit(STAGE, ERA, STEP) is None, "they have voted for something else"
    voter.take(true)
    assert voter.commit(STAGE, ERA, STEP) == true
    assert voter.terms[-1].step == STEP + 1


def forged_ahead(by: str, step: int = STEP + 1) -> Commit:
    """A commit of a later step, for which those that say so have voted indeed."""
    made = decree(E, 1, by, by, step)
    where = Ballot(STAGE, ERA, step, 1, E, 1, digest_of(made))
    votes = tuple((p, signature(PeerId(p), VOTE, encode_ballot(where))) for p in by)
    return Commit(STAGE, step, 1, E, made, votes, era=ERA)


@pytest.mark.parametrize("proven", ["ABCE", "ABCDE"])
def test_nobody_makes_an_elector_silent_in_its_step(swarm: Swarm, proven: str) -> None:
    """By a step ahead, of which it cannot know the electors yet. Those who try may have worked,
    anywhere: who serves the stage is not Ready for what they have invented."""
    first, _ = leaders()
    voter = swarm.electors[C]
    show(voter, proves=set(proven).__contains__)
    show(voter, serving=lambda _stage: {A: STEP, B: STEP})
    for step in (STEP + 1, STEP + 2):
        voter.take(forged_ahead("E", step))
        voter.take(forged_ahead("DE", step))
        assert voter.answer(E, Propose(STAGE, step, 2, era=ERA)) == Propose(
            STAGE, step - 1, 0, era=ERA
        )
    assert voter.terms[-1].step == STEP
    assert voter.answer(first, Propose(STAGE, STEP, 1, decree(first), era=ERA)).signature


@pytest.mark.parametrize(
    ("term", "by", "proven", "moves"),
    [
        ("ABC", "AB", "", True),  # a majority of those whom its term names
        ("ABC", "AD", "", False),
        ("ABC", "DE", "DE", True),  # all others are new
        ("", "AB", "", False),
        ("", "AD", "AB", False),
        ("", "AB", "AB", True),
        ("", "DE", "ABC", False),
    ],
)
def test_who_has_missed_steps_goes_by_its_term_or_by_two_that_are_proven(
    term: str, by: str, proven: str, moves: bool
) -> None:
    voter = elector(C)
    show(voter, proves=set(proven).__contains__)
    show(voter, serving=lambda _stage: {A: STEP, B: STEP})
    if term:
        voter.load([Term(STAGE, ERA, STEP - 2, electors=tuple(term))])
    voter.take(forged_ahead(by))
    assert (voter.commit(STAGE, ERA, STEP + 1) is not None) == moves


def test_where_only_one_is_proven_its_vote_is_enough() -> None:
    voter = elector(C)
    show(voter, proves={A}.__contains__)
    voter.take(forged_ahead("DE"))
    assert voter.commit(STAGE, ERA, STEP + 1) is None
    show(voter, serving=lambda _stage: {A: STEP})
    voter.take(forged_ahead("AE"))
    assert voter.commit(STAGE, ERA, STEP + 1) is not None


def test_a_step_that_cannot_be_is_none_of_its(swarm: Swarm) -> None:
    show(swarm.electors[C], may_be=lambda _stage, _era, step: step <= STEP + 1)
    assert swarm.electors[C].answer(A, Propose(STAGE, STEP + 1000, 2, era=ERA)) is None
    assert swarm.electors[C].terms[-1].step == STEP


def test_it_keeps_few_commits() -> None:
    voter = elector(A)
    said = Commit(STAGE, 0, 1, A, decree(), (), era=ERA)
    for step in range(MAX_COMMITS + 9):
        voter.take(replace(said, step=step), checked=True)
    assert voter.commit(STAGE, ERA, 8) is None
    assert voter.commit(STAGE, ERA, 9) is not None
    step = MAX_COMMITS + 9
    leader = designated("AB", STAGE, step)
    last = Term(STAGE, ERA, step, 1, leader, members=("A", "B"), electors=("A", "B", "C"))
    assert voter.terms == (last,)


class TestMajority:
    def test_who_has_ended_counts_for_neither_side_unless_it_has_voted(self) -> None:
        three = frozenset((A, B, C))
        assert not is_majority({A}, three)
        assert is_majority({A}, three, lambda peer: peer != A)
        assert not is_majority({E}, three)
        assert is_majority({A, B}, three, lambda peer: peer == B)


def test_a_digest_names_all_of_a_decree() -> None:
    one = decree()
    others = [replace(one, attempt=2), replace(one, electors=("A",)), replace(one, loss_sum=1.0)]
    assert len({digest_of(one), *map(digest_of, others)}) == 4


class TestWhatIsProposed:
    """An elector votes for what all members are Ready for, if none is left out that it hears."""

    def answer(self, voter: Elector, said: Decree) -> Vote | Commit | Propose | None:
        first, _ = leaders()
        answer = voter.answer(first, Propose(STAGE, STEP, said.attempt, said, era=ERA))
        return None if isinstance(answer, Penalise) else answer

    @pytest.mark.parametrize(
        "changed",
        [
            {"digest": b"x" * 32},
            {"electors": ("A",)},
            {"members": ("B", "A")},
            {"members": ("A",)},
            {"members": ("A", "B", "C")},
            {"members": ("A", "A")},
            {"attempt": 2},
            {"ready": ()},
        ],
    )
    def test_what_a_member_is_not_ready_for(self, swarm: Swarm, changed: dict[str, object]) -> None:
        first, _ = leaders()
        said = replace(decree(first), **changed)
        answer = swarm.electors[C].answer(first, Propose(STAGE, STEP, 1, said, era=ERA))
        assert answer == Penalise(first, "not-all-are-ready", 50)
        assert swarm.electors[C].liars() == {first}
        assert isinstance(self.answer(swarm.electors[C], decree(first)), Vote)

    def test_a_leader_may_sum_the_losses_up(self, swarm: Swarm) -> None:
        first, _ = leaders()
        said = replace(decree(first), loss_sum=7.0)
        assert isinstance(self.answer(swarm.electors[C], said), Vote)

    @pytest.mark.parametrize(
        ("version", "lost", "votes"),
        [(STEP, "", False), (STEP, "B", True), (STEP - 1, "", True), (None, "", True)],
    )
    def test_who_is_left_out(
        self, swarm: Swarm, version: int | None, lost: str, votes: bool
    ) -> None:
        voter, (first, other) = swarm.electors[C], leaders()
        show(
            voter,
            serving=lambda _stage: {first: STEP} | ({} if version is None else {other: version}),
        )
        show(voter, lost=lambda: {other} if lost else ())
        answer = self.answer(voter, decree(first, members=first))
        assert isinstance(answer, Vote) == votes
        assert (voter.liars() == {first}) != votes

    def test_two_that_have_voted_are_believed_and_one_is_not(self) -> None:
        swarm = Swarm("ABCDE", "ABCDE")
        first, other = leaders()
        said = decree(first, electors="ABCDE", members=first)
        votes = Propose(STAGE, STEP, 1, said, era=ERA)
        assert isinstance(swarm.electors[D].answer(first, votes), Vote)
        for one in swarm.electors.values():
            show(one, serving=lambda _stage: {first: STEP, other: STEP}, lost=lambda: {first})
        later = swarm.proposer(other)
        later._left_out = lambda decree: {other}.difference(decree.members)
        swarm.say(other, later.ask(0.0), later, to="BDE" if other == B else "ADE")
        assert later.state is State.ASKING, "it would be refused, and not all have answered"
        later.tick(ANSWER_S)
        later.count()
        assert later.state is State.BOUND, "the two that are silent may have voted, too"
        bound = Propose(STAGE, STEP, 2, said, later.promises, era=ERA)
        assert swarm.electors[E].answer(other, bound) is None
        assert isinstance(swarm.electors[D].answer(other, bound), Vote)
        swarm.say(other, later.ask(2.0), later)
        assert later.state is State.FREE, "most have not voted for it"


def test_one_elector_binds_nobody_where_most_have_not_voted() -> None:
    three = frozenset((A, B, C))
    none = [Promise(peer, 0, b"", b"") for peer in (A, B)]
    one = Promise(C, 5, b"x", b"")
    assert bound_by([none[0], one], three) == b"x", "the third may have voted, too"
    assert bound_by([*none, one], three) == b""
    assert bound_by([none[0], Promise(B, 2, b"y", b""), one], three) == b""
    assert bound_by([none[0], Promise(B, 2, b"x", b""), one], three) == b"x"


# --- leaders that lie --------------------------------------------------------------------------


ME, LEADER, LIAR = map(PeerId, ("me", "leader", "liar"))


def unsigned() -> Elector:
    """One that knows who elects its step."""
    made = UnsplitElector()
    show(made, first=lambda era, step: (ME, LEADER, LIAR) if (era, step) == (0, STEP) else ())
    return made


def promised(voter: Elector, leader: PeerId, attempt: int) -> bool:
    answer = voter.answer(leader, Propose(STAGE, STEP, attempt))
    return isinstance(answer, Vote) and bool(answer.signature)


def test_questions_do_not_exhaust_the_attempts_of_a_step() -> None:
    """Nor take them where those who lead next need long to follow."""
    voter, now = unsigned(), 7.0
    show(voter, now=lambda: now)
    for attempt in (*range(2, 9 * MAX_ATTEMPTS_PER_S, MAX_ATTEMPTS_PER_S - 2), MAX_ATTEMPT):
        assert promised(voter, LIAR, attempt) == (attempt <= MAX_ATTEMPTS_PER_S)
    now = 7.0 + 2.0
    assert promised(voter, LEADER, 3 * MAX_ATTEMPTS_PER_S)
    assert not promised(voter, LEADER, 3 * MAX_ATTEMPTS_PER_S + 1)


def test_only_those_whom_the_lineage_names_elect_its_first_step() -> None:
    """Whoever else has promised or voted: of it, no elector knows a decree before."""
    voter = UnsplitElector()
    show(voter, first=lambda era, step: (ME, LEADER, "third") if (era, step) == (0, STEP) else ())
    forged = Decree(2, b"x" * 32, (LIAR,), (LIAR,), 0.0, (bytes(64),))
    promises = tuple(Promise(peer, 0, b"", bytes(64)) for peer in (LIAR, "another"))
    answer = voter.answer(LIAR, Propose(STAGE, STEP, 2, forged, promises))
    assert not answer.signature
    voter.take(Commit(STAGE, STEP, 2, LIAR, forged, ((LIAR, bytes(64)),)))
    assert voter.commit(STAGE, 0, STEP) is None
    true = Decree(2, b"t" * 32, (LEADER,), (ME, LEADER), 0.0, (bytes(64),))
    promises = tuple(Promise(peer, 0, b"", bytes(64)) for peer in (ME, LEADER))
    answer = voter.answer(LEADER, Propose(STAGE, STEP, 2, true, promises))
    assert answer.signature
    said = Commit(STAGE, STEP, 2, LEADER, true, ((LEADER, bytes(64)), (ME, bytes(64))))
    voter.take(said)
    assert voter.commit(STAGE, 0, STEP) == said


def test_whom_an_elector_does_not_know_to_elect_moves_it_to_nothing() -> None:
    """Its process has ended, or it was named only now: it asks for the commit before."""
    voter = UnsplitElector()
    forged = Decree(2, b"x" * 32, (LIAR,), (LIAR,), 0.0, (bytes(64),))
    promises = (Promise(LIAR, 0, b"", bytes(64)),)
    for asked in (Propose(STAGE, STEP, 2), Propose(STAGE, STEP, 2, forged, promises)):
        assert voter.answer(LIAR, asked) == Propose(STAGE, STEP - 1, 0)
    assert unsigned().answer(LIAR, asked) != Propose(STAGE, STEP - 1, 0)


def test_only_who_leads_overtakes_others() -> None:
    """Else any member of the stage could overtake every leader, again and again."""
    voter = unsigned()
    electors = ME, LEADER, LIAR
    named = sorted((LEADER, LIAR), key=lambda peer: peer == designated((LEADER, LIAR), STAGE, STEP))
    second, first = named
    before = commit_of(STAGE, STEP - 1, 1, bytes(32), named, electors=electors)
    voter.take(before, checked=True)
    show(voter, serving=lambda _stage: {first: STEP, second: STEP, "newcomer": STEP})
    assert not promised(voter, PeerId("newcomer"), 2)
    assert not promised(voter, second, 2), "the first one is there"
    assert promised(voter, first, 2)
    for version, leads in ((STEP - 2, True), (STEP - 1, False), (STEP, False), (STEP + 1, True)):
        show(voter, serving=lambda _stage, v=version: {first: v, second: STEP})
        assert promised(voter, second, 10 + version) == leads
    show(voter, serving=lambda _stage: {first: STEP, second: STEP}, lost=lambda: {first})
    assert promised(voter, second, 20), "it is lost to us"
    show(voter, is_near=lambda _stage: False, lost=tuple)
    assert promised(voter, second, 21), "we would not see that the first one obstructs"
    assert not promised(voter, PeerId("newcomer"), 22)
    show(voter, serving=lambda _stage: {"newcomer": STEP})
    assert promised(voter, PeerId("newcomer"), 23), "nobody of them is there"


def test_who_does_not_serve_leads_no_first_step() -> None:
    """No decree before says who is a member: anyone could ask."""
    voter, served = unsigned(), {LEADER: STEP, LIAR: STEP}
    show(voter, serving=lambda _stage: served)
    first = designated(served, STAGE, STEP)
    assert not promised(voter, PeerId("stranger"), 2)
    assert promised(voter, first, 2)
