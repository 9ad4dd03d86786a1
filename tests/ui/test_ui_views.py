"""Stages, matching, settings and diagnostics in words."""

from __future__ import annotations

import pytest
from msgspec import structs

from client.control.matches import Explanation, PayingMove, SeatMatch, StewardshipView
from client.control.snapshot import AmendmentView, GivenUpView, LimitsView, WorkerView
from client.control.updates import Update
from client.ui.diagnostics import report
from client.views import dashboard, matching, settings
from client.views.record import Record
from client.views.settings import Setting
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
    stage_match(0, seat=0, phi=1.1),
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


def test_preferences_come_in_order_with_numbers_and_reasons() -> None:
    head, rows = matching.preferences(_with_matching(), Box(120))
    assert "you could do" in plain([head])
    assert [row.key for row in rows] == ["stage-1", "stage-0"]
    first, second = (plain(list(row.lines)) for row in rows)
    assert "6.00/s" in first
    assert "no place" in first
    assert "its cutoff is above us" in first
    assert "your main" in second
    assert "have it" in second


def test_no_blocking_pairs_is_said_and_pairs_are_listed() -> None:
    assert "none would help both" in plain(matching.seats(_with_matching(), BOX))
    moves = [PayingMove(home=0, to=1)]
    text = plain(matching.seats(_with_matching(paying_moves=moves), BOX))
    assert "1 would pay: stage 0 to 1" in text


def test_seats_stewardships_and_refusals_are_told() -> None:
    steward = StewardshipView(
        stage=1, term=1, epoch=1, phase="committed", places=1, final=1, level=1.0, quota=1.0
    )
    seats = [
        SeatMatch(seat=0, stage=0, state="serving", since=NOW),
        SeatMatch(seat=1, stage=1, state="fetching"),
    ]
    record = _with_matching(seats=seats, stewardships=[steward], refused={"late": 3})
    text = plain(matching.seats(record, BOX))
    assert "you decide who holds stage 1" in text
    assert "late 3" in text


def test_decisions_show_their_reasons() -> None:
    told = [
        Explanation(
            time=NOW,
            level="info",
            words="proposing to stage 2: " + "reason " * 30,
            decision="proposal",
        )
    ]
    (row,) = matching.decisions(_with_matching(explanations=told), Box(60))
    assert len(row.lines) == 3
    assert "proposal" in plain(list(row.lines))


def test_before_the_matching_has_begun_it_says_so() -> None:
    assert "measured" in plain(matching.seats(Record(), BOX))
    assert "measured" in plain(list(matching.preferences(Record(), BOX)[1][0].lines))
    assert "nothing was proposed" in plain(list(matching.decisions(Record(), BOX)[0].lines))


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
                swarm_head, matching.seats, settings.limits,
            ):  # fmt: skip
                lines = view(record, box)
                assert len(lines) <= 9, view
                assert all(line_width(line) <= width for line in lines), view


AMENDED = AmendmentView(
    number=1, words="the run is extended from 200 to 400 steps", steps=400, asked_step=0
)


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
    one = GivenUpView(steps=341, reached=388, members=("12D3KooWAnna4AphPb",), at=0.0)
    head = plain(swarm_head(recorded_from(update(1, given_up=one)), BOX))
    assert "341 steps made here without 4AphPb" in head


# --- settings and diagnostics ----------------------------------------------------------------


def test_settings_are_filtered_and_say_where_they_come_from() -> None:
    found = [Setting("threads", "2", "flag"), Setting("seats", "0", "default")]
    _, rows = settings.settings_table(found, Box(90), "thr")
    assert [row.key for row in rows] == ["threads"]
    assert "flag" in plain(list(rows[0].lines))
    assert settings.how_to_change(found[0])[0] == "volunteer config set threads VALUE"


def test_limits_show_use() -> None:
    limits = LimitsView(
        threads=2, compute_share=50, memory_bytes=2 * 10**9, vram_share=80,
        daily_bytes=10**9, used_bytes=5 * 10**8,
    )  # fmt: skip
    text = plain(settings.limits(recorded_from(update(1, limits=limits)), Box(80)))
    assert "1.10 GB" in text
    assert "of 2.00 GB" in text
    assert "500 MB" in text
    assert "2, 50 % of the time" in text
    assert "80 % of its memory" in text


SECRETS = [
    ("dialling /ip4/192.0.2.7/tcp/4001/p2p/x failed", "192.0.2.7"),
    ("cannot reach 203.0.113.9:4001", "203.0.113.9"),
    ("from 2001:db8:0:1::7 again", "2001:db8"),
    ("/dns4/home.example.org/tcp/1 refused", "home.example.org"),
    ("cannot write /home/berta/.local/share/volunteer/x", "berta"),
    ("see ~/private/notes.txt", "private"),
    ("invite volunteer:" + "ab" * 32 + "?secret=hunter2", "hunter2"),
    ("secret: hunter2", "hunter2"),
    (f"peer {'12D3KooW' + 'A' * 44} left", "A" * 20),
]


@pytest.mark.parametrize(("words", "secret"), SECRETS)
def test_diagnostics_leave_out_addresses_paths_and_secrets(words: str, secret: str) -> None:
    assert secret in words
    record = recorded_from(update(1, event(1, words, level="error"), reason=words))
    assert secret not in report(record, words)


def test_diagnostics_say_what_a_helper_needs() -> None:
    text = report(recorded_from(*recorded()), "live")
    for word in (
        "version:",
        "state     done",
        "capacity/s",
        "counted twice",
        "faults: 1 fault",
        "last 30 events",
    ):
        assert word in text
    assert ME not in report(recorded_from(update(1)), "live")
    assert "/ip4/" not in text
    assert "no answer yet" in report(Record(), "connecting")
