"""A stage's version is the newest one that two members bear out."""

import pytest

from protocol.ids import PeerId
from protocol.view import Replica, SwarmView

A, B, C = map(PeerId, "abc")


def view(*stages: dict[PeerId, int]) -> SwarmView:
    return SwarmView.of([[Replica(p, v, True) for p, v in there.items()] for there in stages])


@pytest.mark.parametrize(
    ("stages", "committed"),
    [
        (({A: 7, B: 7}, {C: 7}), (7, 7)),
        (({A: 7, B: 8}, {C: 7}), (7, 7)),  # ahead for a moment, or a lie
        (({A: 7, B: 8}, {C: 8}), (8, 8)),
        (({A: 7, B: 1 << 39}, {C: 7}), (7, 7)),
        (({A: 7, B: 1 << 39}, {C: 8}), (8, 8)),
        (({A: 7, B: 0}, {C: 7}), (7, 7)),  # one that names too little holds up nobody
        (({A: 5}, {B: 9, C: 9}), (5, 9)),
        (({A: 7}, {A: 9, B: 7}), (7, 7)),  # with two seats it is still one member
        (({A: 7}, {}), (7, 0)),  # nobody else is left who could bear it out
        (({}, {}), (0, 0)),
    ],
)
def test_no_version_counts_by_one_word(
    stages: tuple[dict[PeerId, int], ...], committed: tuple[int, ...]
) -> None:
    seen = view(*stages)
    assert tuple(seen.committed(stage) for stage in range(len(stages))) == committed


def test_only_those_that_serve_bear_out_a_version() -> None:
    seen = SwarmView.of([[Replica(A, 7, True), Replica(B, 9, True)], [Replica(C, 9, False)]])
    assert seen.committed(0) == 7
    assert (seen.committed(1), seen.committed(2)) == (0, 0)


def test_who_stays_and_whether_a_stage_ends() -> None:
    stays, goes, fetches = (
        Replica(A, 3, True),
        Replica(B, 3, True, leaving=True),
        Replica(C, 3, False),
    )
    assert SwarmView.of([[stays, goes, fetches]]).staying(0) == [stays]
    assert SwarmView.of([[stays, goes, fetches]]).staying(0, A) == []
    assert not SwarmView.of([[stays, goes], [stays]]).ending
    assert SwarmView.of([[goes, fetches], [stays]]).ending
    assert not SwarmView.of([[], [stays]]).ending, "it has ended already"
