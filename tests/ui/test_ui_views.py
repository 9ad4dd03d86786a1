"""Stages and matching in words."""

from __future__ import annotations

import pytest

from client.control.matches import MatchesSnapshot, SeatMatch
from client.control.snapshot import AmendmentView, AuditCounts, AuditsView, Snapshot
from client.control.updates import Update
from client.views import dashboard, matching, peers, trust, words
from client.views.record import Record
from client.views.span import Box, line_width, plain
from client.views.stages import stage_map, stage_rows, stage_table
from client.views.swarm import swarm_head
from tests.ui import examples
from tests.ui.examples import (
    ANNA,
    BORIS,
    CARLA,
    ME,
    NOW,
    event,
    judged,
    recorded_from,
    replica,
    snapshot,
    stage,
    stage_match,
    step,
    update,
)
from tests.ui.playing import recorded

BOX, WIDE = Box(100), Box(140, 40)
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


THEORY = ("steward", "blocking", "epoch", "quota", "preference", "proposal", "phi")


def said(found: MatchesSnapshot | None, **changes: object) -> str:
    record = Record()
    record.apply(update(1, **changes))
    record.matches = found
    text = plain(matching.sentences(record, WIDE))
    assert not [word for word in THEORY if word in text.lower()]
    return text


def test_what_we_hold_and_what_is_on_its_way_are_told() -> None:
    seats = [
        SeatMatch(seat=0, stage=0, state="serving"),
        SeatMatch(seat=1, stage=1, state="fetching"),
    ]
    text = said(examples.matching(stage_match(0), stage_match(1), seats=seats))
    assert "You hold stage 0." in text
    assert "Stage 1 is yours: its numbers are being copied to this machine." in text
    assert "Nobody could move" in text


def test_before_the_matching_it_says_what_is_waited_for() -> None:
    assert "as soon as this machine has been measured" in said(None)
    assert "one is being chosen for you" in said(examples.matching(stage_match(0), seats=[]))


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


def test_the_swarm_tab_shows_every_amendment() -> None:
    made = [AmendmentView(number=n, words=f"{n}00 steps", steps=100 * n) for n in (1, 2)]
    head = plain(swarm_head(recorded_from(update(1, amendments=made)), Box(100)))
    assert "100 steps" in head
    assert "200 steps" in head


# --- trust -----------------------------------------------------------------------------------


def record_of(now: Snapshot) -> Record:
    record = recorded_from(update(1))
    record.snapshot = now
    return record


def audited(**results: int) -> Snapshot:
    return snapshot(audits=AuditsView(contributions=412, results=AuditCounts(**results)))


def test_a_run_without_audits_and_faults_has_no_summary() -> None:
    assert trust.summary(Record(), WIDE) == []
    assert trust.summary(record_of(snapshot()), WIDE) == []


@pytest.mark.parametrize(
    ("today", "words"),
    [
        ({}, "0 of 412 contributions audited"),
        ({"agree": 3}, "all agree; 3 of 412 contributions audited"),
    ],
)
def test_the_dashboard_has_a_line_of_them(today: dict[str, int], words: str) -> None:
    lines = plain(dashboard.machine(record_of(audited(**today)), WIDE)).splitlines()
    assert f"audits  {words}" in lines
    narrow = plain(dashboard.machine(record_of(audited(**today)), Box(32, 40))).splitlines()
    assert any(line.startswith(f"audits  {words[:8]}") for line in narrow)
    assert "audits" not in plain(dashboard.machine(record_of(snapshot()), WIDE))


def test_the_details_say_why_a_member_is_trusted() -> None:
    record = record_of(judged())
    good, new, own = (plain(peers.details(record, peer, WIDE)) for peer in (ANNA, CARLA, ME))
    assert "proven: steps that were closed here contain its work" in good
    assert "0carla, 3 invitations from the founder, in the branch of 0boris" in good
    assert "evidence" not in good
    assert "on probation: no step that was closed here contains its work; one is enough" in new
    assert "our audits" not in new
    assert "trust" not in own


def test_the_share_of_who_did_all_the_work_fits_its_column() -> None:
    shares = [words.share(part) for part in (0.042, 0.42, 0.9994, 0.9996, 1.0)]
    assert shares == ["4.2 %", "42.0 %", "99.9 %", "100 %", "100 %"]


def test_of_whom_nothing_is_known_nothing_is_said() -> None:
    text = plain(peers.details(record_of(snapshot()), ANNA, WIDE))
    assert "none of its work is known here yet" in text
