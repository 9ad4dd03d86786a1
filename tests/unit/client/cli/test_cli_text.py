"""Words and figures for people; nothing a stranger named may drive the terminal."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.cli.logging.log_writer import as_json, as_text, log_writer
from client.cli.terminal.output import printable
from client.config import Settings
from client.control.snapshot import (
    AmendmentView,
    EventView,
    ExpelledView,
    HeldView,
    LimitsView,
    LineView,
    SeatView,
)
from client.events import LogLine, StepCommitted
from client.views.report import status_report
from client.views.status import limits, one_line
from tests.support.control_fakes import example_snapshot


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\tü", "plain\n\tü"),
        ("\x1b]0;owned\x07", "\ufffd]0;owned\ufffd"),
        ("a\rb\x00\x7f\x9b", "a\ufffdb\ufffd\ufffd\ufffd"),
        ("right\u202eleft", "right\ufffdleft"),
    ],
)
def test_control_characters_do_not_reach_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_printable_text_has_no_escape(text: str) -> None:
    assert not set(printable(text)) & {"\x1b", "\x9b", "\r", "\x07", "\x00"}


def test_the_report_names_state_stages_and_mended_faults() -> None:
    text = status_report(example_snapshot())
    words = "training: you serve stage 0; 1 without a volunteer (all stages are covered)"
    assert f"state     {words}" in text
    assert "step 3 of 10, loss 2.5000" in text
    assert "◆ you 1.50/s" in text
    assert "nobody" in text
    assert "0 counted twice" in text


def test_the_report_names_what_the_founder_has_changed() -> None:
    assert "amended" not in status_report(example_snapshot())
    one = AmendmentView(number=1, words="more steps", steps=20, from_step=9)
    two = AmendmentView(number=2, words="another rate", steps=20)
    text = status_report(example_snapshot(amendments=[one, two], contradicted_amendment=3))
    assert "amended   more steps (from step 9 on)\n" in text
    assert "          another rate (not agreed on by the stages yet)\n" in text
    assert "          the founder has signed two different amendments 3: neither counts\n" in text


def test_the_report_tells_of_newer_programs_and_how_to_update() -> None:
    assert "program" not in status_report(example_snapshot())
    text = status_report(example_snapshot(newer="2 members report a newer program"))
    assert "program   2 members report a newer program (git pull and make install" in text


def test_the_report_names_what_was_given_up_where_two_lines_of_the_run_met() -> None:
    assert "given up" not in status_report(example_snapshot())
    words = "341 steps made here without 4AphPb are given up"
    one = EventView(seq=1, time=0.0, kind="LineGivenUp", topic="", level="warning", words=words)
    text = status_report(example_snapshot(given_up=one))
    assert words in text


def test_the_report_says_that_two_lines_of_the_run_exist() -> None:
    assert "two lines" not in status_report(example_snapshot())
    lines = [
        LineView(members=["12D3KooWx4AphPb"], version=388),
        LineView(members=[f"12D3KooW00000{n}" for n in range(5)], version=7),
    ]
    text = status_report(example_snapshot(beside=lines))
    assert "two lines 4AphPb trains this run apart from this volunteer, at version 388: " in text
    assert "000000, 000001, 000002, 2 more train this run apart" in text


def test_the_report_names_who_was_expelled_last_and_why() -> None:
    assert "expelled" not in status_report(example_snapshot())
    out = [ExpelledView(peer=f"p{n}", reason=f"p{n} signed two plans") for n in range(9)]
    lines = status_report(example_snapshot(expelled=out)).splitlines()
    at = lines.index("expelled  p8 signed two plans")
    assert lines[at + 1 : at + 5] == [
        "          p7 signed two plans",
        "          p6 signed two plans",
        "          6 more: volunteer evidence ls",
        "evidence  volunteer evidence save FILE, which anybody can verify",
    ]


def test_the_report_says_which_version_is_certified() -> None:
    assert "certified" not in status_report(example_snapshot())
    text = status_report(example_snapshot(certified_version=150, certified_links=2))
    assert "certified version 150, 2 links from the founder's signature" in text


def test_the_report_names_a_robust_rule_and_the_stages_that_are_too_few_for_it() -> None:
    assert "averaging" not in status_report(example_snapshot())
    now = example_snapshot(aggregation="centred-clipping")
    [line] = [line for line in status_report(now).splitlines() if line.startswith("averaging")]
    assert "centred-clipping: gradients are averaged; those far from most others" in line
    assert line.endswith("stages 0, 1: norms only, fewer than 3 volunteers")
    [replica] = now.stages[0].replicas[:1]
    full = [msgspec.structs.replace(stage, replicas=[replica] * 3) for stage in now.stages]
    assert "norms" not in status_report(msgspec.structs.replace(now, stages=full))
    assert "averaging" not in status_report(example_snapshot(aggregation="of-a-later-version"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (LimitsView(used_bytes=1500), "none; 1.50 kB sent and received today"),
        (LimitsView(threads=1, compute_share=50), "1 thread, 50 % of the time"),
        (
            LimitsView(memory_bytes=4 * 10**9, upload_bytes_per_s=2_000_000),
            "4.00 GB RAM, ▲ 16.0 Mbit/s",
        ),
        (
            LimitsView(daily_bytes=50 * 10**9, used_bytes=10**9, when=["idle only"]),
            "1.00 GB of 50.0 GB today, idle only",
        ),
    ],
)
def test_the_report_names_the_limits(found: LimitsView, words: str) -> None:
    assert limits(found) == words
    assert f"limits    {words}" in status_report(example_snapshot(limits=found))


def test_the_progress_line_says_why_nothing_moves() -> None:
    waiting = example_snapshot(state="waiting", reason="stage 1 has no volunteer", loss=None)
    assert "stage 1 has no volunteer" in one_line(waiting)
    assert "loss 2.5000" in one_line(example_snapshot())
    fetching = example_snapshot(seats=[SeatView(stage=1, version=0, state="fetching")])
    assert "stage 1 (fetching)" in one_line(fetching)


def test_log_lines_are_one_line_each() -> None:
    event = LogLine(words="first\nsecond\x1b[2J", level="warning")
    assert "warning: first second\ufffd[2J" in as_text(event, 0.0)
    record = json.loads(as_json(StepCommitted(words="w", step=3, loss=2.0, tokens=9), 1.0))
    assert record["kind"] == "StepCommitted"
    assert record["data"] == {"step": 3, "loss": 2.0, "tokens": 9}
    assert "\n" not in as_json(event, 0.0)


def test_events_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    write = log_writer(Settings(log_level="warning", log_format="json"))
    write(LogLine(words="quiet"))
    write(LogLine(words="loud", level="error"))
    said = capsys.readouterr().err
    assert "quiet" not in said
    assert json.loads(said)["words"] == "loud"


def test_the_report_says_what_a_held_stage_waits_for_and_for_how_long() -> None:
    serving = HeldView(stage=0, state="serving", waits_for="", for_s=900.0)
    draining = HeldView(
        stage=1, state="draining", waits_for="draining stage 1: its step", for_s=12.0
    )
    report = status_report(example_snapshot(held=[serving, draining]))
    lines = [line for line in report.splitlines() if line.startswith("waits")]
    assert lines == ["waits     draining stage 1: its step, for 12 s"]
