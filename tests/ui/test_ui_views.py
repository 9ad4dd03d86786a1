"""Stages and matching in words."""

from client.control.snapshot import AmendmentView, MatchesView, SeatView
from client.views import dashboard, matching, words
from client.views.logs import log_rows, log_title
from client.views.record import Record
from client.views.span import Box, line_width, plain
from client.views.stages import stage_map, stage_rows
from client.views.swarm import swarm_head
from tests.ui import examples
from tests.ui.examples import (
    BORIS,
    CARLA,
    event,
    recorded_from,
    replica,
    stage,
    stage_match,
    update,
)
from tests.ui.playing import recorded

BOX, WIDE = Box(100), Box(140, 40)
ORDER = [
    stage_match(1, obstacle="its cutoff is above us", redundancy=2),
    stage_match(0),
]


def _with_matching(**changes: object) -> Record:
    found = examples.matching(*ORDER, **changes)
    return recorded_from(update(0, matches=found))


# --- stages ----------------------------------------------------------------------------------


def test_every_stage_says_why_it_is_as_it_is() -> None:
    record = _with_matching()
    whys = [row.why for row in stage_rows(record)]
    assert whys == ["slowest; enough", "lacks 1: filled first"]
    bare = recorded_from(update(1, stages=[stage(0), stage(1, replica(CARLA, "fetching"))]))
    assert [row.why for row in stage_rows(bare)] == [
        "the swarm waits",
        "the swarm waits; 1 on the way",
    ]


def test_where_room_is_short_those_in_need_come_first() -> None:
    stages = [stage(n, replica(BORIS)) for n in range(40)]
    stages[31] = stage(31)
    text = plain(stage_map(recorded_from(update(1, stages=stages)), Box(80, 4)))
    assert " 31 " in text
    assert "and 38 more: press 2" in text


# --- matching --------------------------------------------------------------------------------


THEORY = ("steward", "blocking", "epoch", "quota", "preference", "proposal", "phi")


def said(found: MatchesView | None, **changes: object) -> str:
    record = Record()
    record.apply(update(1, matches=found, **changes))
    text = plain(matching.sentences(record, WIDE))
    assert not [word for word in THEORY if word in text.lower()]
    return text


def test_what_we_hold_and_what_is_on_its_way_are_told() -> None:
    seats = [
        SeatView(seat=1, stage=1, version=0, state="fetching", waits_for="its numbers"),
        SeatView(seat=0, stage=0, version=5, state="serving"),
        SeatView(seat=0, stage=2, version=5, state="serving", waits_for="draining stage 2"),
    ]
    text = said(examples.matching(stage_match(0), stage_match(1)), seats=seats)
    assert "You hold stage 0." in text
    assert "Stage 1 is yours: its numbers are being copied to this machine." in text
    assert "Stage 2 is yours: it is being handed over." in text
    assert "Nobody could move" in text


# --- logs ------------------------------------------------------------------------------------


def test_an_empty_log_says_what_is_not_there() -> None:
    for text, said in (("", "nothing here yet"), ("relay", "nothing contains 'relay'")):
        [row] = log_rows(Record(), BOX, "info", text)
        assert plain(row.lines) == said
    assert log_title(Record(), "info", "") == "0 events, info and above, newest last"
    assert log_title(Record(), "info", "relay").startswith("0 events that match, info")


# --- dashboard -------------------------------------------------------------------------------


def test_all_views_fit_every_width_all_through_the_run() -> None:
    record = Record()
    for number, one in enumerate(recorded()):
        record.apply(one)
        if number % 9:
            continue
        for width in (28, 44, 76, 108, 196):
            box = Box(width, 9)
            for view in (
                dashboard.loss, dashboard.machine, dashboard.network, dashboard.events, stage_map,
                swarm_head, matching.sentences,
            ):  # fmt: skip
                lines = view(record, box)
                assert len(lines) <= 9, view
                assert all(line_width(line) <= width for line in lines), view


def test_the_swarm_tab_says_what_was_given_up_where_two_lines_met() -> None:
    one = event(1, "341 steps made here without 4AphPb are given up")
    head = plain(swarm_head(recorded_from(update(1, given_up=one)), BOX))
    assert "341 steps made here without 4AphPb" in head


def test_the_swarm_tab_shows_every_amendment() -> None:
    made = [
        AmendmentView(number=n, words=f"{n}00 steps", steps=100 * n, from_step=n) for n in (1, 2)
    ]
    head = plain(swarm_head(recorded_from(update(1, amendments=made)), Box(100)))
    assert "100 steps" in head
    assert "200 steps" in head


# --- trust -----------------------------------------------------------------------------------


def test_the_share_of_who_did_all_the_work_fits_its_column() -> None:
    shares = [words.share(part) for part in (0.042, 0.42, 0.9994, 0.9996, 1.0)]
    assert shares == ["4.2 %", "42.0 %", "99.9 %", "100 %", "100 %"]
