"""A replica moves for what it sees, not for what a steward says against it."""

from __future__ import annotations

import pytest

from protocol.effects import SendLetter
from protocol.ids import Stage
from protocol.matching.board import Board
from protocol.matching.bodies import COMMITTED, Mandate, Posting
from protocol.matching.context import Context
from protocol.matching.mover import Mover, Step
from protocol.matching.population import Population
from tests.support.matching_examples import NOW, WALL_S, costs, member, peer

MICRO = 1_000_000
MANDATE = Mandate(int(WALL_S // 600), 1)
HOME = Stage(1)


def posting(stage: int, replicas: int, number: int = 1) -> Posting:
    level = replicas * MICRO
    return Posting(
        stage, MANDATE, int(WALL_S * 1000) + number, number, COMMITTED, level, replicas, level,
        replicas, 1, 1, 2, 0, 0,
    )  # fmt: skip


def mover(said: tuple[int, int], seen: tuple[int, int]) -> Mover:
    """Return ours, at home in stage 1, when it has looked.

    Args:
        said: replicas of both stages, as their stewards post them.
        seen: replicas that we see ourselves.
    """
    stages = [0] * seen[0] + [1] * seen[1]
    everybody = [member(n, held=[stage]) for n, stage in enumerate(reversed(stages))]
    population, board = Population(everybody, costs([1e9] * 2), 2), Board(2)
    board.observe(population, WALL_S)
    for stage, replicas in enumerate(said):
        board.pin(peer(1), posting(stage, replicas), NOW)
    context = Context(peer(0), population, board, WALL_S - NOW)
    context.last_members.observe(population.members, MANDATE.beacon)
    found = Mover(context)
    found.home_changed(HOME, NOW)
    found.look(NOW)
    asked = found.tick(HOME, 0.0, found.next_deadline())
    assert any(isinstance(effect, SendLetter) for effect in asked) == (found.step is Step.ASKING)
    return found


def test_for_a_stage_that_is_served_it_asks_only_when_a_move_pays_twice_in_a_row() -> None:
    """Newcomers and second seats may help meanwhile."""
    found = mover((1, 3), (1, 3))
    assert found.step is Step.IDLE
    then = found.next_deadline()
    for stage, replicas in enumerate((1, 3)):
        found._context.board.pin(peer(1), posting(stage, replicas, 2), then - 1)
    asked = found.tick(HOME, 0.0, then)
    assert any(isinstance(effect, SendLetter) for effect in asked)
    assert found.step is Step.ASKING


@pytest.mark.parametrize(
    ("said", "seen", "asks"),
    [
        ((0, 2), (0, 2), True),
        ((0, 2), (2, 2), False),  # its steward says that it is empty, and it is not
        ((0, 9), (1, 2), False),
        ((1, 9), (1, 2), False),  # our home has no nine replicas, we would leave one behind
    ],
)
def test_a_stage_is_left_only_if_our_own_view_agrees(
    said: tuple[int, int], seen: tuple[int, int], asks: bool
) -> None:
    assert (mover(said, seen).step is Step.ASKING) == asks
