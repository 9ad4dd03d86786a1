"""The keepers of checkpoint copies."""

from protocol.ids import PeerId
from protocol.transfer.buddy import buddy, kept_by
from protocol.view import Replica, SwarmView


def view(*stages: str, fetching: str = "") -> SwarmView:
    """A letter per replica: ``view("ab", "c")`` has two in stage 0."""
    return SwarmView.of(
        [[Replica(PeerId(name), 0, name not in fetching) for name in names] for names in stages]
    )


def test_the_buddy_stands_beside_the_stage_and_does_not_hold_it() -> None:
    swarm = view("ab", "bcd", "e")
    assert buddy(swarm, 0, {}) in ("c", "d")
    assert buddy(swarm, 1, {}) == "e"
    assert buddy(swarm, 2, {}) in ("b", "c", "d")


def test_everybody_names_the_same_one_and_every_stage_has_one() -> None:
    swarm = view("abc", "def", "ghi")
    keepers = [peer for peer in "abcdefghi" for _ in kept_by(swarm, PeerId(peer), {})]
    assert len(keepers) == 3
    assert kept_by(swarm, PeerId("z"), {}) == ()


def test_who_is_in_another_place_comes_first() -> None:
    swarm = view("ab", "cdef")
    places = {PeerId(p): "here" for p in "abcdef"}
    for elsewhere in "cdef":
        assert buddy(swarm, 0, {**places, PeerId(elsewhere): "there"}) == elsewhere
    assert buddy(swarm, 0, places) == buddy(swarm, 0, {}), "all in one place: better than none"


def test_without_anybody_beside_there_is_none() -> None:
    assert buddy(view("abc"), 0, {}) is None
    assert buddy(view("a", ""), 0, {}) is None
    assert buddy(view("a", "a"), 0, {}) is None, "both stages are on one machine"
    assert buddy(view("a", "b", fetching="b"), 0, {}) is None
    assert buddy(view("a", "", "c"), 0, {}) is None
