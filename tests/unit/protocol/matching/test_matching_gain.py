"""The loss of the stages that a single move leaves, the second seat's included."""

from __future__ import annotations

import pytest

from protocol.ids import Stage
from protocol.matching import gain
from protocol.matching.board import stage_levels
from protocol.matching.bodies import COMMITTED, Mandate, Posting
from protocol.matching.gain import Move
from protocol.matching.sharing import effective_levels
from tests.support.matching_examples import WALL_S, member, peer, population

MICRO = 1_000_000
MANDATE = Mandate(int(WALL_S // 600), 1)


def posting(stage: int, level: int, replicas: int, seconds: int = 0) -> Posting:
    return Posting(
        stage, MANDATE, int(WALL_S * 1000), 1, COMMITTED, level * MICRO, replicas, level * MICRO,
        replicas, 1, 1, 2, 0, 0, seconds=seconds,
    )  # fmt: skip


def objection(postings: list[Posting], move: Move) -> str | None:
    stages = stage_levels(postings)
    return gain.objection(postings, stages, effective_levels(stages), move)


@pytest.mark.parametrize(("seconds", "allowed"), [(1, False), (2, True)])
def test_the_second_stage_keeps_its_replicas_too(seconds: int, allowed: bool) -> None:
    """From stage 0 with a second seat at 1 to stage 3: stage 1 loses a replica as well."""
    rich, second = posting(0, 9, 9), posting(1, 9, 1, seconds)
    postings = [rich, second, posting(2, 9, 9), posting(3, 1, 2)]
    move = Move(Stage(0), Stage(3), MICRO, MICRO, Stage(1), MICRO)
    words = objection(postings, move)
    assert (words is None) == allowed, words
    if not allowed:
        assert words == "stage 1 has 2 replicas and needs 2"


def test_a_second_stage_beside_the_new_home_is_kept() -> None:
    postings = [posting(0, 9, 9), posting(1, 9, 1, 1), posting(2, 1, 2)]
    move = Move(Stage(0), Stage(2), MICRO, MICRO, Stage(1), MICRO)
    assert move.leaves == (Stage(0),)
    assert objection(postings, move) is None


def test_coverage_comes_before_redundancy_before_throughput() -> None:
    """The same move, to a stage with nobody, one and two replicas, from one that has r = 2."""
    for there, allowed in ((0, True), (1, False), (2, False)):
        postings = [posting(0, 9, 2), posting(1, there, there)]
        move = Move(Stage(0), Stage(1), MICRO, 9 * MICRO)
        assert (objection(postings, move) is None) == allowed, there
    postings = [posting(0, 9, 3), posting(1, 9, 1)]
    move = Move(Stage(0), Stage(1), 9 * MICRO, 1)
    assert objection(postings, move) is None, "redundancy comes before throughput"


def test_a_move_leads_from_a_home_to_another_stage() -> None:
    view = population([member(1, held=[0]), member(2)])
    move = Move.of(peer(1), Stage(1), view)
    assert move is not None
    assert (move.home, move.to) == (Stage(0), Stage(1))
    assert (move.rate_home, move.rate_there) == (
        view.rate(peer(1), Stage(0)),
        view.rate(peer(1), Stage(1)),
    )
    assert Move.of(peer(1), Stage(0), view) is None, "it is there"
    assert Move.of(peer(2), Stage(1), view) is None, "it has no home"
    assert Move.of(peer(3), Stage(1), view) is None, "nobody knows it"
