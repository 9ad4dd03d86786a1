"""Leaders that lie to electors: about attempts, and about who elects."""

from __future__ import annotations

from protocol.decree.elector import Elector, unsigned_elector
from protocol.ids import PeerId
from protocol.limits import MAX_ATTEMPT, MAX_ATTEMPTS_MISSED
from protocol.wire.messages import Commit, Propose, Vote
from protocol.wire.parts import Decree, Promise

ME, LEADER, LIAR = map(PeerId, ("me", "leader", "liar"))
STAGE, STEP = 1, 5


def promised(voter: Elector, leader: PeerId, attempt: int) -> bool:
    """Whether an elector promises a leader an attempt."""
    answer = voter.answer(leader, Propose(STAGE, STEP, attempt))
    return isinstance(answer, Vote) and bool(answer.signature)


def test_one_question_does_not_exhaust_the_attempts_of_a_step() -> None:
    voter = unsigned_elector(ME)
    assert not promised(voter, LIAR, MAX_ATTEMPT)
    assert promised(voter, LEADER, 2)
    for _ in range(9):
        assert not promised(voter, LIAR, MAX_ATTEMPT)
    assert promised(voter, LEADER, 3)


def test_who_missed_very_many_attempts_is_asked_until_it_answers() -> None:
    voter, far = unsigned_elector(ME), 3 * MAX_ATTEMPTS_MISSED
    assert [promised(voter, LEADER, far) for _ in range(3)] == [False, False, True]


def test_only_those_whom_the_lineage_names_elect_its_first_step() -> None:
    """Whoever else has promised or voted: of it, no elector knows a decree before."""
    voter = unsigned_elector(ME)
    voter.first = lambda era, step: (ME, LEADER, "third") if (era, step) == (0, STEP) else ()
    forged = Decree(2, b"x" * 32, (LIAR,), (LIAR,), 0.0)
    promises = tuple(Promise(peer, 0, b"", bytes(64)) for peer in (LIAR, "another"))
    answer = voter.answer(LIAR, Propose(STAGE, STEP, 2, forged, promises))
    assert isinstance(answer, Vote)
    assert not answer.signature
    voter.take(Commit(STAGE, STEP, 2, LIAR, forged, ((LIAR, bytes(64)),)))
    assert voter.commit(STAGE, 0, STEP) is None
    true = Decree(2, b"t" * 32, (LEADER,), (ME, LEADER), 0.0)
    promises = tuple(Promise(peer, 0, b"", bytes(64)) for peer in (ME, LEADER))
    answer = voter.answer(LEADER, Propose(STAGE, STEP, 2, true, promises))
    assert isinstance(answer, Vote)
    assert answer.signature
    said = Commit(STAGE, STEP, 2, LEADER, true, ((LEADER, bytes(64)), (ME, bytes(64))))
    voter.take(said)
    assert voter.commit(STAGE, 0, STEP) == said
