"""Leaders and electors that lie about attempts."""

from __future__ import annotations

from protocol.decree.elector import Elector, unsigned_elector
from protocol.ids import PeerId
from protocol.limits import MAX_ATTEMPT, MAX_ATTEMPTS_MISSED
from protocol.wire.messages import Propose, Vote

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
