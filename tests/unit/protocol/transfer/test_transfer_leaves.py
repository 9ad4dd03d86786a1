"""Fetching leaves: what is urgent first, from whoever has it; a wrong one costs its giver."""

from collections.abc import Sequence

import pytest

from protocol.effects import Penalise
from protocol.ids import PeerId, peer_id_from_key
from protocol.pace import FORGET_S, LOST_S
from protocol.transfer.leaves import (
    LEAST_AHEAD,
    LIE,
    SOON_S,
    WINDOW,
    LeafEffect,
    LeafFetch,
    StoreChunk,
)
from protocol.wire.messages import Chunk, ChunkRequest
from tests.support.effects import sent

A, B = (peer_id_from_key(bytes([n]) * 32) for n in range(2))


def leaf(index: int) -> Chunk:
    return Chunk(bytes(32), index)


def asked(effects: Sequence[LeafEffect]) -> list[tuple[PeerId, int]]:
    return [(peer, request.index) for peer, request in sent(effects, ChunkRequest)]


def begin(*donors: PeerId) -> LeafFetch:
    fetch = LeafFetch(bytes(32))
    assert fetch.offer(donors, 0.0) == []
    return fetch


def test_the_most_urgent_are_asked_for_within_the_window() -> None:
    fetch = begin(A)
    wanted = [7, 3, *range(100, 200)]
    assert asked(fetch.want(wanted, [], 0.0)) == [(A, index) for index in wanted[:WINDOW]]
    effects = fetch.chunk(A, leaf(7), "proven", 1.0)
    assert effects[0] == StoreChunk(7)
    assert asked(effects) == [(A, wanted[WINDOW])]


@pytest.mark.parametrize(("between_s", "ahead"), [(0.001, WINDOW), (0.06, 4), (1.0, LEAST_AHEAD)])
def test_what_nobody_waits_for_is_in_flight_as_far_as_it_arrives_soon(
    between_s: float, ahead: int
) -> None:
    fetch = begin(A)
    in_flight = asked(fetch.want([], range(200), 0.0))
    assert len(in_flight) == LEAST_AHEAD
    now = 0.0
    for _ in range(60):
        now += between_s
        _, index = in_flight.pop(0)
        in_flight += asked(fetch.chunk(A, leaf(index), "proven", now))
    assert len(in_flight) == ahead
    wanted = [*range(300, 300 + WINDOW - ahead), 400]
    urgent = asked(fetch.want(wanted, range(60, 200), now))
    assert urgent == [(A, index) for index in wanted[:-1]], "what is awaited is asked for at once"


def test_behind_a_slow_line_what_is_awaited_comes_soon_while_the_line_never_rests() -> None:
    """A line of ten leaves a second, as of 20 Mb/s, gives them in the order of their requests."""
    fetch, now, line_s = begin(A), 0.0, 0.1
    line = asked(fetch.want([], range(300), 0.0))
    for arrivals in range(40):
        assert line, "the line rests"
        now += line_s
        line += asked(fetch.chunk(A, leaf(line.pop(0)[1]), "proven", now))
        if arrivals == 30:
            line += asked(fetch.want([299], range(299), now))
            assert line[-1] == (A, 299)
            assert (len(line) - 1) * line_s <= SOON_S


def test_an_answer_without_a_leaf_is_no_sign_of_a_fast_line() -> None:
    fetch = begin(A)
    in_flight = asked(fetch.want([], range(200), 0.0))
    for number in range(50):
        _, index = in_flight.pop(0)
        in_flight += asked(fetch.chunk(A, leaf(index), "lacks", number * SOON_S / 1000))
    assert len(in_flight) == LEAST_AHEAD


def test_donors_share_the_work_and_no_leaf_is_asked_for_twice() -> None:
    fetch = begin(A, B)
    requests = asked(fetch.want(range(20), [], 0.0))
    assert sorted(index for _, index in requests) == list(range(20))
    assert [sum(peer == donor for peer, _ in requests) for donor in (A, B)] == [10, 10]
    assert asked(fetch.want(range(20), [], 1.0)) == []


def test_a_wrong_leaf_costs_its_giver_and_is_fetched_elsewhere() -> None:
    fetch = begin(A, B)
    requests = asked(fetch.want(range(4), [], 0.0))
    lied = [index for peer, index in requests if peer == A]
    effects = fetch.chunk(A, leaf(lied[0]), "lie", 1.0)
    assert effects[0] == Penalise(A, *LIE)
    assert sorted(asked(effects)) == [(B, index) for index in lied]
    assert asked(fetch.offer([A, B], 2.0)) == []
    fetch.lost(B, 3.0)
    assert asked(fetch.offer([A], 3.0)) == [], "who has lied is not asked again"


def test_who_lacks_a_leaf_is_asked_for_it_later() -> None:
    fetch = begin(A)
    fetch.want([5], [], 0.0)
    assert asked(fetch.chunk(A, leaf(5), "lacks", 1.0)) == []
    assert asked(fetch.tick(1.0 + FORGET_S / 2)) == []
    assert asked(fetch.offer([A, B], 2.0)) == [(B, 5)]
    fetch.lost(B, 3.0)
    assert asked(fetch.tick(1.0 + FORGET_S)) == [(A, 5)]


def test_the_leaves_of_a_lost_donor_are_asked_for_elsewhere() -> None:
    fetch = begin(A)
    fetch.want([1, 2], [], 0.0)
    assert sorted(asked(fetch.offer([B], 1.0))) == [(B, 1), (B, 2)]
    assert fetch.chunk(A, leaf(1), "proven", 2.0) == []


def test_a_silent_donor_rests() -> None:
    fetch = begin(A)
    fetch.want([1], [], 0.0)
    assert asked(fetch.tick(LOST_S)) == []
    assert asked(fetch.tick(LOST_S + FORGET_S)) == [(A, 1)]


def test_a_crowd_of_silent_donors_keeps_nobody_waiting_for_long() -> None:
    """One gives ten leaves a second; the others offer them again and again, and give none."""
    silent = [peer_id_from_key(bytes([n]) * 32) for n in range(2, 30)]
    fetch, wanted, given = begin(A), 20, 0
    line = asked(fetch.want(range(wanted), [], 0.0))
    for tenth in range(1, 900):
        now = tenth / 10
        if ours := [index for peer, index in line if peer == A]:
            given, wanted = given + 1, wanted + 1
            line = [entry for entry in line if entry[1] != ours[0]]
            line += asked(fetch.chunk(A, leaf(ours[0]), "proven", now))
            line += asked(fetch.want(sorted(fetch._wanted | {wanted: None}), [], now))
        line += asked(fetch.offer([A, *silent][: None if tenth % 20 else 1], now))
        line += asked(fetch.tick(now))
    assert given >= 800


def test_a_late_leaf_counts() -> None:
    fetch = begin(A)
    fetch.want([1, 2], [], 0.0)
    fetch.tick(LOST_S)
    assert fetch.chunk(A, leaf(1), "proven", LOST_S + 1)[0] == StoreChunk(1)
    assert fetch.chunk(A, leaf(2), "lie", LOST_S + 1) == []


def test_one_that_refuses_rests_for_a_while() -> None:
    fetch = begin(A, B)
    requests = asked(fetch.want([1], [], 0.0))
    other = B if requests == [(A, 1)] else A
    assert asked(fetch.refused(requests[0][0], 1.0)) == [(other, 1)]


def test_leaves_that_nobody_asked_for_are_ignored() -> None:
    fetch = begin(A)
    fetch.want([1], [], 0.0)
    assert fetch.chunk(B, leaf(1), "proven", 1.0) == []
    assert fetch.chunk(A, leaf(2), "lie", 1.0) == []
    fetch.want([], [], 2.0)
    assert fetch.chunk(A, leaf(1), "proven", 3.0) == [], "it is not wanted any more"


def test_it_starves_where_nobody_gives_what_is_wanted() -> None:
    fetch = begin()
    fetch.want([1], [], 5.0)
    assert not fetch.starved(4.0 + LOST_S)
    assert fetch.starved(5.0 + LOST_S)
    fetch.offer([A], 30.0)
    assert not fetch.starved(60.0)
    fetch.chunk(A, leaf(1), "lacks", 60.0)
    assert not fetch.starved(61.0)
    assert fetch.starved(60.0 + LOST_S)
    fetch.want([], [], 99.0)
    assert not fetch.starved(200.0)
