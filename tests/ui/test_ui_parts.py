"""The Matching tab in plain words: our stages, moves and who decides, and no theory."""

from __future__ import annotations

from client.control.matches import MatchesSnapshot, SeatMatch
from client.views.matching import sentences
from client.views.record import Record
from client.views.span import Box, plain
from tests.ui.examples import matching, stage_match, update

WIDE = Box(400, 40)
THEORY = ("steward", "blocking", "epoch", "quota", "preference", "proposal", "phi")


def said(found: MatchesSnapshot | None, **changes: object) -> str:
    record = Record()
    record.apply(update(1, **changes))
    record.matches = found
    text = plain(sentences(record, WIDE))
    assert not [word for word in THEORY if word in text.lower()]
    return text


def test_what_we_hold_and_what_is_on_its_way_are_told() -> None:
    seats = [
        SeatMatch(seat=0, stage=0, state="serving"),
        SeatMatch(seat=1, stage=1, state="fetching"),
    ]
    text = said(matching(stage_match(0), stage_match(1), seats=seats))
    assert "You hold stage 0." in text
    assert "Stage 1 is yours: its numbers are being copied to this machine." in text
    assert "Nobody could move" in text


def test_before_the_matching_it_says_what_is_waited_for() -> None:
    assert "as soon as this machine has been measured" in said(None)
    assert "one is being chosen for you" in said(matching(stage_match(0), seats=[]))
