"""Stages and matching in words."""

from __future__ import annotations

from client.control.updates import Update
from client.views import dashboard, matching
from client.views.record import Record
from client.views.span import Box, line_width, plain
from client.views.stages import stage_map, stage_rows, stage_table
from client.views.swarm import swarm_head
from tests.ui import examples
from tests.ui.examples import (
    ANNA,
    BORIS,
    CARLA,
    NOW,
    event,
    recorded_from,
    replica,
    snapshot,
    stage,
    stage_match,
    step,
    update,
)
from tests.ui.playing import recorded

BOX = Box(100)
ORDER = [
    stage_match(1, obstacle="its cutoff is above us", redundancy=2),
    stage_match(0, seat=0),
]


def _with_matching(**changes: object) -> Record:
    found = examples.matching(*ORDER, **changes)
    return recorded_from(Update(time=NOW, snapshot=snapshot(), matches=found))


# --- stages ----------------------------------------------------------------------------------


def test_every_stage_says_why_it_is_as_it_is() -> None:
    record = _with_matching()
    whys = [row.why for row in stage_rows(record)]
    assert whys == ["slowest; enough", "lacks 1 volunteer: filled first"]
    bare = recorded_from(update(1, stages=[stage(0), stage(1, replica(CARLA, "fetching"))]))
    assert [row.why for row in stage_rows(bare)] == [
        "nobody yet: the swarm waits",
        "nobody yet; 1 on the way: the swarm waits",
    ]


def test_the_map_marks_ourselves_and_fits() -> None:
    record = _with_matching()
    for width in (30, 60, 80, 120):
        lines = stage_map(record, Box(width, 5))
        assert len(lines) == 2
        assert all(line_width(line) <= width for line in lines)
    assert "◆●" in plain(lines)


def test_where_room_is_short_those_in_need_come_first() -> None:
    stages = [stage(n, replica(BORIS)) for n in range(40)]
    stages[31] = stage(31)
    text = plain(stage_map(recorded_from(update(1, stages=stages)), Box(80, 4)))
    assert " 31 " in text
    assert "and 37 more: press 2" in text


def test_the_table_names_all_replicas() -> None:
    head, rows = stage_table(_with_matching(), Box(80))
    assert "wanted" in plain([head])
    text = plain([line for row in rows for line in row.lines])
    for peer in (ANNA, BORIS):
        assert peer[-6:] in text
    assert "you" in text
    many = recorded_from(update(1, stages=[stage(0, *(replica(f"peer{n:06}") for n in range(90)))]))
    assert "and 66 more" in plain([line for row in stage_table(many, BOX)[1] for line in row.lines])


# --- matching --------------------------------------------------------------------------------


def test_decisions_show_their_reasons() -> None:
    words = "proposing to stage 2: " + "reason " * 30
    told = [event(1, words, topic="matching", data={"decision": "proposal"})]
    (row,) = matching.decisions(_with_matching(explanations=told), Box(60))
    assert len(row.lines) == 3
    assert "proposal" in plain(list(row.lines))


# --- dashboard -------------------------------------------------------------------------------


def test_events_leave_out_what_other_panels_show() -> None:
    record = recorded_from(
        update(1, step(1, 0), event(2, "hello"), event(3, "detail", level="debug"))
    )
    assert plain(dashboard.events(record, BOX)).endswith("hello")
    assert len(dashboard.events(record, BOX)) == 1


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
