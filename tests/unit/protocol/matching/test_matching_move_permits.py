"""One permit at a time, the same answer to a repeated request, and an end to each permit."""

from __future__ import annotations

from protocol.ids import Stage
from protocol.matching import bodies
from protocol.matching.board import Board
from protocol.matching.bodies import COMMITTED, Mandate, Permit, Posting, Transfer
from protocol.matching.context import Context
from protocol.matching.move_permits import MovePermits
from protocol.matching.timing import PERMIT_S
from tests.support.matching_examples import NOW, WALL_S, answers, member, peer, population

MICRO = 1_000_000
MANDATE = Mandate(int(WALL_S // 600), 1)
ME, LOW, HIGH = peer(0), 0, 1


def posting(stage: int, replicas: int) -> Posting:
    level = replicas * MICRO
    return Posting(
        stage, MANDATE, int(WALL_S * 1000) + 1, 1, COMMITTED, level, replicas, level,
        replicas, 1, 1, 2, 0, 0,
    )  # fmt: skip


def permits() -> MovePermits:
    """Return those of the steward of a stage of one replica beside one of three."""
    members = [member(n, held=[HIGH if n else LOW]) for n in range(4)]
    view, board = population(members), Board(2)
    board.observe(view, WALL_S)
    for stage, replicas in ((LOW, 1), (HIGH, 3)):
        board.pin(peer(1), posting(stage, replicas), NOW)
    context = Context(ME, view, board, WALL_S - NOW)
    context.last_members.observe(view.members, MANDATE.beacon)
    return MovePermits(context, Stage(LOW))


def ask(made: MovePermits, number: int, at: float, version: int = 1) -> Permit:
    body = Transfer(LOW, MANDATE, int(WALL_S * 1000), ME, version, HIGH, 0)
    [answer] = answers(made.receive(peer(number), body, MANDATE, at))
    assert isinstance(answer, bodies.Permit)
    return answer


def test_a_second_replica_waits_until_the_first_ones_permit_is_over() -> None:
    made = permits()
    assert ask(made, 2, NOW).granted
    refused = ask(made, 3, NOW + 1)
    assert not refused.granted
    assert "another replica is moving" in refused.reason
    assert not made.permits(peer(3), NOW + 1)
    assert made.permits(peer(2), NOW + PERMIT_S - 1)
    assert not made.permits(peer(2), NOW + PERMIT_S), "though nobody has asked since"
    assert ask(made, 3, NOW + PERMIT_S + 1).granted


def test_a_repeated_request_gets_the_same_answer_and_no_more_time() -> None:
    made = permits()
    assert ask(made, 2, NOW).granted
    assert ask(made, 2, NOW + PERMIT_S - 1).granted, "the answer may have been lost"
    assert ask(made, 3, NOW + PERMIT_S + 1).granted, "the first permit is over all the same"
