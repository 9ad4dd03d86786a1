"""A stage-0 replica's microbatches in flight: its share of those that keep the whole swarm busy."""

from __future__ import annotations

import pytest

from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.seat.leasing import Leasing
from protocol.view import Replica, SwarmView

ME, OTHER, THIRD = (peer_id_from_key(bytes([n]) * 32) for n in range(3))


def desk_of(peer: PeerId) -> Leasing:
    place = Place(peer, 0, 3, 64)
    return Leasing(place, Pipeline(place, 0))


def view(mine: float, theirs: float) -> SwarmView:
    first = [Replica(ME, 0, True, rate=mine), Replica(OTHER, 0, True, rate=theirs)]
    return SwarmView.of([first, [Replica(THIRD, 0, True)], [Replica(THIRD, 0, True)]])


@pytest.mark.parametrize(
    ("mine", "theirs", "cap"),
    [
        (0.0, 0.0, 5),  # 1.25 x (3 stages x 2 replicas) / 2, rounded up, and one
        (1.0, 0.0, 5),  # one has not said: equal shares
        (1.0, 1.0, 5),
        (3.0, 1.0, 7),
        (1.0, 3.0, 3),
        (1.0, 1e30, 3),  # a boast counts as four times the usual
        (1e30, 1.0, 7),
    ],
)
def test_shares_follow_speed_within_bounds(mine: float, theirs: float, cap: int) -> None:
    assert desk_of(ME).in_flight_cap(view(mine, theirs)) == cap


def test_who_is_not_in_the_view_yet_takes_an_equal_share() -> None:
    assert desk_of(THIRD).in_flight_cap(view(1.0, 1.0)) == 5
