"""What leaving costs, said beforehand."""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.seat.parting import Parting, is_ending, partings
from protocol.view import Replica, SwarmView

ME, A, B, C = (PeerId(name) for name in ("me", "a", "b", "c"))


def test_what_becomes_of_the_stages_we_serve() -> None:
    view = SwarmView.of(
        [
            [Replica(ME, 3, True), Replica(A, 3, True), Replica(B, 3, True)],
            [Replica(ME, 3, True), Replica(C, 3, False)],
            [Replica(A, 3, True)],
            [Replica(ME, 3, False)],
        ]
    )
    found = partings(view, ME)
    assert found == (Parting(0, 2), Parting(1, 0))
    assert [parting.words for parting in found] == [
        "stage 0 keeps 2 replicas",
        "you are the last replica of stage 1: the swarm will wait for another volunteer",
    ]
    assert [parting.last for parting in found] == [False, True]
    assert partings(view, C) == ()


def test_who_leaves_as_well_does_not_count() -> None:
    leaving = Replica(A, 3, True, leaving=True)
    view = SwarmView.of(
        [[Replica(ME, 3, True), leaving], [Replica(ME, 3, True), Replica(B, 3, True)]]
    )
    assert [parting.remaining for parting in partings(view, ME)] == [0, 1]
    assert partings(view, ME)[1].words == "stage 1 keeps 1 replica"


def test_a_stage_ends_when_all_who_serve_it_leave() -> None:
    stays, goes = Replica(A, 3, True), Replica(B, 3, True, leaving=True)
    assert not is_ending(SwarmView.of([[stays, goes], [stays]]))
    assert is_ending(SwarmView.of([[goes], [stays]]))
    assert is_ending(SwarmView.of([[goes, Replica(A, 3, False)], [stays]]))
    assert not is_ending(SwarmView.of([[], [stays]])), "it has ended already"
