"""The facts that every part of the matching reads from the postings."""

from __future__ import annotations

from protocol.ids import Stage
from protocol.matching.board import Board
from protocol.matching.bodies import COMMITTED, Mandate, Posting
from protocol.matching.timing import BEACON_S, POSTING_TTL_S
from tests.support.matching_examples import NOW, WALL_S, member, peer, population

BEACON = int(WALL_S // BEACON_S)
STAGES = 3


def posting(stage: int, beacon: int) -> Posting:
    return Posting(
        stage, Mandate(beacon, 1), int(WALL_S * 1000), 1, COMMITTED, 1, 1, 1, 1, 1, 1, 2, 0, 0
    )


def board(*beacons: int) -> Board:
    """Two of three stages have a steward, each by a mandate of such a beacon."""
    made = Board(STAGES)
    made.observe(population([member(n) for n in range(3)], STAGES), WALL_S)
    for stage, beacon in enumerate(beacons):
        made.pin(peer(stage), posting(stage, beacon), NOW + stage)
    return made


def test_a_stage_without_a_steward_of_this_beacon_is_vacant() -> None:
    found = board(BEACON, BEACON - 1).facts(NOW + 1)
    assert found.vacant == (Stage(1), Stage(2))
    assert board(BEACON, BEACON).facts(NOW + 1).vacant == (Stage(2),)


def test_the_next_expiry_is_that_of_the_oldest_posting_that_counts() -> None:
    made = board(BEACON, BEACON)
    assert made.next_expiry(NOW + 1) == NOW + POSTING_TTL_S
    assert made.next_expiry(NOW + POSTING_TTL_S) == NOW + 1 + POSTING_TTL_S
