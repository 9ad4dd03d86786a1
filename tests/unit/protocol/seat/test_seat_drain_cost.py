"""The costs of leaving, reported beforehand."""

from protocol.ids import PeerId
from protocol.seat.drain_cost import drain_costs, is_ending
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
    assert drain_costs(view, ME) == {0: 2, 1: 0}
    assert drain_costs(view, C) == {}


def test_a_stage_ends_when_all_who_serve_it_leave() -> None:
    stays, goes = Replica(A, 3, True), Replica(B, 3, True, leaving=True)
    assert not is_ending(SwarmView.of([[stays, goes], [stays]]))
    assert is_ending(SwarmView.of([[goes], [stays]]))
    assert is_ending(SwarmView.of([[goes, Replica(A, 3, False)], [stays]]))
    assert not is_ending(SwarmView.of([[], [stays]])), "it has ended already"
