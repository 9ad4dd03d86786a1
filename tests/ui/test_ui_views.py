"""Stages and matching in words."""

from __future__ import annotations

from msgspec import structs

from client.control.snapshot import AmendmentView, LimitsView, TimeView, WorkerView
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


def test_before_the_matching_has_begun_it_says_so() -> None:
    assert "measured" in plain(matching.sentences(Record(), BOX))


# --- dashboard -------------------------------------------------------------------------------


def test_this_machine_shows_what_it_holds_does_and_lends() -> None:
    limits = LimitsView(threads=2, memory_bytes=2 * 10**9, when=["idle only"])
    record = recorded_from(update(1, limits=limits, workers=[WorkerView(state="running")]))
    text = plain(dashboard.machine(record, Box(60, 20)))
    assert "stage 0 serving" in text
    assert "(also)" not in text
    assert "2 threads, 2.00 GB RAM, idle only" in text
    assert "250 tokens/s, 25 % of all" in text
    small = dashboard.machine(record, Box(30, 4))
    assert len(small) == 4
    assert "serving" in plain(small)


def test_this_machine_shows_what_it_makes_of_its_device() -> None:
    one = WorkerView(state="running", stage=0, flop_per_s=1e9, mfu=0.25)
    other = WorkerView(state="running", stage=1, flop_per_s=1e9, mfu=0.125)
    record = recorded_from(update(1, workers=[one, other]))
    assert "2 running, 38 % MFU" in plain(dashboard.machine(record, Box(60, 20)))
    record = recorded_from(update(1, workers=[WorkerView(state="running")]))
    assert "MFU" not in plain(dashboard.machine(record, Box(60, 20)))


def test_this_machine_shows_what_its_time_is_spent_on() -> None:
    spent = TimeView(computing=0.58, averaging=0.25, waiting=0.1, resting=0.07)
    record = recorded_from(update(1, time_spent=spent))
    told = "58 % computing, 25 % averaging, 10 % waiting, 7 % resting"
    assert f"time    {told}" in plain(dashboard.machine(record, Box(72, 20)))
    narrow = plain(dashboard.machine(record, Box(36, 20)))
    assert "time    58 % computing\n" in narrow, "no half words"


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


AMENDED = AmendmentView(number=1, words="the run is extended from 200 to 400 steps", steps=400)


def test_the_swarm_tab_says_what_the_founder_has_changed() -> None:
    def head(**changes: object) -> str:
        return plain(swarm_head(recorded_from(update(1, **changes)), BOX))

    assert "amended" not in head()
    assert f"{AMENDED.words} (not agreed on by the stages yet)" in head(amendments=[AMENDED])
    agreed = structs.replace(AMENDED, from_step=212)
    assert f"{AMENDED.words} (from step 212 on)" in head(amendments=[agreed])
    two = head(amendments=[agreed], contradicted_amendment=2)
    assert "the founder has signed two different amendments 2: neither counts" in two


def test_the_swarm_tab_says_what_was_given_up_where_two_lines_met() -> None:
    one = event(1, "341 steps made here without 4AphPb are given up")
    head = plain(swarm_head(recorded_from(update(1, given_up=one)), BOX))
    assert "341 steps made here without 4AphPb" in head
