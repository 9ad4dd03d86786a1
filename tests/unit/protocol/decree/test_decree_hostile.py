"""Leaders that lie to electors: about attempts, and about who elects."""

from __future__ import annotations

from protocol.decree.elector import Elector, unsigned_elector
from protocol.ids import PeerId
from protocol.limits import MAX_ATTEMPT, MAX_ATTEMPTS_MISSED
from protocol.wire.messages import Commit, CommitRequest, Propose, Vote
from protocol.wire.parts import Decree, Promise
from tests.support.decrees import commit_of

ME, LEADER, LIAR = map(PeerId, ("me", "leader", "liar"))
STAGE, STEP = 1, 5


def elector() -> Elector:
    """One that knows who elects its step."""
    made = unsigned_elector()
    made.first = lambda era, step: (ME, LEADER, LIAR) if (era, step) == (0, STEP) else ()
    return made


def promised(voter: Elector, leader: PeerId, attempt: int) -> bool:
    """Whether an elector promises a leader an attempt."""
    answer = voter.answer(leader, Propose(STAGE, STEP, attempt))
    return isinstance(answer, Vote) and bool(answer.signature)


def test_one_question_does_not_exhaust_the_attempts_of_a_step() -> None:
    voter = elector()
    assert not promised(voter, LIAR, MAX_ATTEMPT)
    assert promised(voter, LEADER, 2)
    for _ in range(9):
        assert not promised(voter, LIAR, MAX_ATTEMPT)
    assert promised(voter, LEADER, 3)


def test_who_missed_very_many_attempts_is_asked_until_it_answers() -> None:
    voter, far = elector(), 3 * MAX_ATTEMPTS_MISSED
    assert [promised(voter, LEADER, far) for _ in range(3)] == [False, False, True]


def test_only_those_whom_the_lineage_names_elect_its_first_step() -> None:
    """Whoever else has promised or voted: of it, no elector knows a decree before."""
    voter = unsigned_elector()
    voter.first = lambda era, step: (ME, LEADER, "third") if (era, step) == (0, STEP) else ()
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
    voter = unsigned_elector()
    forged = Decree(2, b"x" * 32, (LIAR,), (LIAR,), 0.0, (bytes(64),))
    promises = (Promise(LIAR, 0, b"", bytes(64)),)
    for asked in (Propose(STAGE, STEP, 2), Propose(STAGE, STEP, 2, forged, promises)):
        assert voter.answer(LIAR, asked) == CommitRequest(STAGE, STEP - 1)
    assert elector().answer(LIAR, asked) != CommitRequest(STAGE, STEP - 1)


def test_only_members_of_the_decree_before_lead_as_long_as_one_of_them_serves() -> None:
    """Else anyone in the swarm could overtake every leader, again and again."""
    voter = elector()
    electors = ME, LEADER, LIAR
    before = commit_of(STAGE, STEP - 1, 1, bytes(32), (LEADER, ME), electors=electors)
    voter.take(before, frozenset(electors))
    voter.serving = lambda _stage: {LEADER: STEP, LIAR: STEP}
    assert not promised(voter, LIAR, 2)
    assert promised(voter, LEADER, 2)
    voter.serving = lambda _stage: {LIAR: STEP}
    assert promised(voter, LIAR, 3), "nobody of them is there"
