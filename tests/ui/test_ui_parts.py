"""The Matching tab in plain words: who has which part, where help is needed, and no theory."""

from __future__ import annotations

from client.control.matches import MatchesSnapshot, PayingMove, SeatMatch
from client.views.matching import sentences
from client.views.record import Record
from client.views.span import Box, plain
from tests.ui.examples import ANNA, BORIS, CARLA, NOW, matching, replica, stage, stage_match, update

WIDE = Box(400, 40)
THEORY = ("steward", "blocking", "epoch", "quota", "preference", "proposal", "phi")


def said(found: MatchesSnapshot | None, **changes: object) -> str:
    record = Record()
    record.apply(update(1, **changes))
    record.matches = found
    text = plain(sentences(record, WIDE))
    assert not [word for word in THEORY if word in text.lower()]
    return text


def test_it_says_what_we_hold_and_where_newcomers_go_first() -> None:
    stages = [stage(0, replica(BORIS)), stage(1, replica(ANNA), replica(CARLA)), stage(2)]
    seats = [SeatMatch(seat=0, stage=1, state="serving", since=NOW)]
    known = [stage_match(n, seat=0 if n == 1 else None) for n in range(3)]
    text = said(matching(*known, seats=seats), stages=stages)
    assert "You hold part 2 of 3 (stage 1)." in text
    assert "Part 1 has one volunteer too few, so newcomers go there first." in text
    assert "Part 3 has nobody: the training waits until somebody comes." in text
    assert "part 3   nobody" in text


def test_a_second_part_and_one_that_is_on_its_way_are_told() -> None:
    seats = [
        SeatMatch(seat=0, stage=0, state="serving"),
        SeatMatch(seat=1, stage=1, state="fetching"),
    ]
    text = said(matching(stage_match(0), stage_match(1), seats=seats))
    assert "You hold part 1 of 2 (stage 0)." in text
    assert "Part 2 of 2 (stage 1) is yours: its numbers are being copied to this machine." in text


def test_moves_pace_and_who_decides_are_told() -> None:
    known = [
        stage_match(0, redundancy=1, shared_level=30.0, seat=0),
        stage_match(1, redundancy=1, shared_level=10.0, obstacle="its cutoff is above us"),
    ]
    move = PayingMove(home=0, to=1)
    text = said(matching(*known, paying_moves=[move], decides=[1]))
    assert "Every part has as many volunteers as it should have." in text
    assert "Part 2 is the slowest and sets the pace of all" in text
    assert "A move from part 1 to part 2 would speed the training up" in text
    assert "others fit it better (its cutoff is above us)." in text
    assert "At the moment you do for part 2." in text


def test_before_the_matching_it_says_what_is_waited_for() -> None:
    assert "as soon as this machine has been measured" in said(None)
    assert "one is being chosen for you" in said(matching(stage_match(0), seats=[]))


def test_names_stand_beside_ids_and_every_line_fits() -> None:
    record = Record()
    record.apply(update(1, names={ANNA: "Anna's PC", BORIS: "x" * 24}))
    record.matches = matching(stage_match(0), stage_match(1))
    for box in (Box(76, 16), Box(20, 4), Box(8, 3)):
        lines = sentences(record, box)
        assert len(lines) <= box.height
        assert all(len(line) <= box.width for line in plain(lines).splitlines())
    assert "Anna's PC (00anna)" in plain(sentences(record, WIDE))
