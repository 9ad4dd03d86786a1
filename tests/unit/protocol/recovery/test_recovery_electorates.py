"""Members that see no trouble follow the electors of their plans, not the number of voices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from protocol.ids import PeerId, peer_id_from_key, rank
from protocol.recovery.electorates import MAX_ELECTORATES, Electorates
from protocol.recovery.machine import STALLED_S, FetchLine, Recovery, RecoveryContext
from protocol.recovery.meeting import MEET_S
from protocol.recovery.stored import ERA_BITS, Copy, Lineage, Stored

PEERS = [peer_id_from_key(bytes([n]) * 32) for n in range(1, 20)]
BY_RANK = sorted(PEERS[:4], key=lambda peer: rank("elector", peer))
ME, MEMBERS, GUESTS, BESIDE = PEERS[0], PEERS[:4], PEERS[4:12], PEERS[12:14]
FIRST = Lineage(1, electors=tuple(sorted(MEMBERS)))
AGAIN = Lineage((1 << ERA_BITS) + 7, electors=FIRST.electors)
"""The run from the seed, one roll-back later."""
FAR = (Copy(0, 230, bytes(32)),)


def nobody(_peer: PeerId) -> bool:
    return False


class TestElectorates:
    @pytest.mark.parametrize(
        ("following", "seconded"),
        [
            (BY_RANK[1:3], False),  # half, without the first
            (BY_RANK[1:4], True),
            ([], False),
        ],
    )
    def test_a_majority_of_the_electors_seconds(
        self, following: list[PeerId], seconded: bool
    ) -> None:
        made = Electorates(PEERS[9])
        made.named(0, BY_RANK)
        assert made.second(following.__contains__, nobody) is seconded

    def test_of_two_halves_the_one_with_the_first_elector_seconds(self) -> None:
        for half, seconded in ((BY_RANK[:2], True), (BY_RANK[2:], False)):
            made = Electorates(PEERS[9])
            made.named(0, BY_RANK)
            assert made.second(half.__contains__, nobody) is seconded

    def test_our_own_word_does_not_count(self) -> None:
        made = Electorates(BY_RANK[0])
        made.named(0, BY_RANK[:3])
        assert not made.second(BY_RANK[:2].__contains__, nobody)

    def test_those_whose_process_has_ended_count_for_neither_side(self) -> None:
        made = Electorates(BY_RANK[0])
        made.named(0, BY_RANK)
        gone = BY_RANK[2:]
        assert made.second({BY_RANK[1]}.__contains__, nobody) is False
        assert not made.second(nobody, lambda peer: peer != BY_RANK[0]), "all but we are gone"
        assert not made.second({BY_RANK[1]}.__contains__, gone.__contains__), "one of two"

    def test_earlier_plans_count_and_are_bounded(self) -> None:
        made = Electorates(ME)
        made.named(0, MEMBERS)
        made.named(0, [ME])
        assert made.second(MEMBERS.__contains__, nobody), "before the parts of the swarm parted"
        for n in range(MAX_ELECTORATES):
            made.named(0, [ME, PEERS[1 + n]])
        assert not made.second(set(MEMBERS[2:]).__contains__, nobody)

    def test_a_set_that_is_named_again_is_kept_once(self) -> None:
        made = Electorates(ME)
        made.named(0, MEMBERS)
        for _ in range(2 * MAX_ELECTORATES):
            made.named(0, [ME])
        assert made.second(MEMBERS.__contains__, nobody)


def training(electors: Sequence[PeerId] = tuple(sorted(MEMBERS))) -> Recovery:
    """A replica that has made version 39 with three others; eight guests have once worked with it
    in another stage, and are linked."""
    made = Recovery(ME, 2, 10, FIRST, seq=5)
    made.set_copies([Copy(0, 10, bytes(32))], 0.0)
    for other in PEERS[1:12]:
        made.receive(other, Stored(FIRST), 1.0)
    for step in range(1, 40):
        made.update(context(step), float(step))
        made.closed(0, step, bytes([step]) * 32, {*MEMBERS, *GUESTS}, float(step), electors)
    return made


def context(version: int, followers: Collection[PeerId] = ()) -> RecoveryContext:
    """The followers serve the other lineage, which is far ahead."""
    with_us = {peer for peer in (*MEMBERS, *BESIDE) if peer not in followers}
    seats = dict.fromkeys(with_us - {ME}, FIRST.era) | dict.fromkeys(followers, AGAIN.era)
    return RecoveryContext(
        frozenset(PEERS[:14]),
        (version, version),
        {peer: (era,) for peer, era in seats.items()},
        reached=dict.fromkeys(followers, 200 + version),
        serving=(frozenset(with_us),),
    )


def goes_over(followers: Sequence[PeerId], electors: Sequence[PeerId] = tuple(MEMBERS)) -> bool:
    """Whether a replica that trains wants the state of another line, which these train."""
    made = training(electors)
    effects = [e for peer in followers for e in made.receive(peer, Stored(AGAIN, FAR), 40.0)]
    for step in range(40, 40 + 2 * int(MEET_S)):
        made.closed(0, step, bytes([step]) * 32, set(MEMBERS), float(step), electors)
        effects += made.update(context(step, followers), float(step))
    return any(isinstance(effect, FetchLine) for effect in effects)


def test_members_that_have_once_worked_with_us_do_not_reset_a_run_that_trains() -> None:
    assert not goes_over(GUESTS)


def test_without_electors_they_would() -> None:
    """The test before shows something only because this one ends otherwise."""
    assert goes_over(GUESTS, ())


def test_a_majority_of_the_electors_takes_us_along() -> None:
    assert goes_over([*MEMBERS[2:], *GUESTS], [ME, *MEMBERS[2:]])


def test_half_of_the_electors_and_many_voices_do_not() -> None:
    last = max(MEMBERS[1:], key=lambda peer: rank("elector", peer))
    assert not goes_over([last, *GUESTS], [ME, last, *BESIDE])


def test_a_pause_of_some_seconds_is_no_reason_to_follow_voices_but_two_minutes_are() -> None:
    made = training()
    for peer in GUESTS:
        made.receive(peer, Stored(AGAIN), 40.0)
    made.update(context(39), 41.0)
    for now in range(42, 42 + int(STALLED_S)):
        made.update(context(39), float(now))
        assert made.lineage == FIRST
    serving = dict.fromkeys(GUESTS, (AGAIN.era,))
    made.update(replace(context(39), eras=serving), 60.0 + STALLED_S)
    assert made.lineage == AGAIN
