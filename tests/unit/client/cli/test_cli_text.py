"""Words and figures for people; nothing a stranger named may drive the terminal."""

import io
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.cli.logging.log_writer import as_json, as_text, log_writer
from client.cli.serving.metrics import exposition
from client.cli.terminal.output import printable, shown, wrapped
from client.config import Settings
from client.control.snapshot import (
    AmendmentView,
    AuditCounts,
    AuditsView,
    ContributorView,
    Counters,
    EventView,
    ExpelledView,
    HeldOutView,
    InvitedMember,
    LimitsView,
    LineView,
    PauseView,
    PayingMove,
    PeerView,
    ReachView,
    RelayView,
    ReplicaView,
    SeatView,
    StageView,
    TimeView,
    TrustView,
    WorkerView,
)
from client.events import LogLine, StepCommitted
from client.quantities import parse_duration
from client.views.report import report
from client.views.status import one_line
from tests.support.cli_process import Terminal
from tests.support.control_fakes import example_matches, example_snapshot, example_stage


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


ME, ANNA, BORIS, CARLA = (
    "12D3KooWexamplepeer",
    *(f"12D3KooWexample{end}" for end in ("4AphPb", "9CqrSt", "0carla")),
)
LIES = "9CqrSt contributed what it should not have computed (step 7 of stage 1)"
FULL = example_snapshot(
    purpose="Haiku in Basque",
    names={ANNA: "Anna", BORIS: "Anna", ME: "My PC"},
    amendments=[
        AmendmentView(number=1, words="more steps", steps=20, from_step=9),
        AmendmentView(number=2, words="another rate", steps=20, from_step=1200),
    ],
    newer="2 members report a newer program",
    beside=[
        LineView(members=[ANNA], version=388),
        LineView(members=[f"12D3KooW00000{n}" for n in range(5)], version=7),
    ],
    given_up=EventView(
        seq=1, time=0.0, kind="LineGivenUp", topic="", level="warning", words="341 steps: given up"
    ),
    certified_version=150,
    certified_links=2,
    aggregation="centred-clipping",
    stages=[
        StageView(
            stage=stage,
            layers=2,
            version=3,
            replicas=[
                ReplicaView(peer=peer, version=3, state="serving", rate=1.0) for peer in peers
            ],
        )
        for stage, peers in enumerate(([ME, ANNA, BORIS], [CARLA]))
    ],
    contributors=[
        ContributorView(peer=ANNA, name="Anna", microbatches=420, tokens=8400, share=0.7),
        ContributorView(peer=ME, microbatches=60, tokens=1200, share=0.1),
    ],
    seats=[
        SeatView(stage=0, version=3, state="serving", for_s=900.0, staying=2),
        SeatView(
            stage=1, version=3, state="serving", waits_for="draining stage 1: its step", for_s=12.0
        ),
    ],
    time_spent=TimeView(computing=0.25, averaging=0.125, waiting=0.125, resting=0.5),
    workers=[WorkerView(pid=8, stage=1)],
    limits=LimitsView(
        threads=1,
        compute_share=50,
        memory_bytes=4 * 10**9,
        upload_bytes_per_s=2_000_000,
        daily_bytes=50 * 10**9,
        used_bytes=10**9,
        when=["idle only"],
    ),
    reach=ReachView(
        state="unreachable",
        words="not reachable: nobody could",
        next_step="forward it",
        change="the network changed; linked again with 3 of 3 after 2.0 s",
    ),
    peers=[
        PeerView(peer=ANNA, state="connected", rtt_ms=5.0, punched=True),
        PeerView(peer=CARLA, state="connected", rtt_ms=6.0, relay=ANNA),
        PeerView(peer="12D3KooWfar", state="known"),
    ],
    audits=AuditsView(contributions=412, results=AuditCounts(agree=4, disagree=1, unchecked=2)),
    expelled=[
        *(ExpelledView(peer=f"p{n}", reason=f"p{n} signed two plans") for n in range(4)),
        ExpelledView(peer=CARLA, reason="Anna has expelled 0carla", by="inviter"),
        ExpelledView(peer=BORIS, reason=LIES, by="charges"),
    ],
    trust=[
        TrustView(peer=BORIS, standing="expelled", words=LIES, fault="stage 1, step 7: a lie"),
        TrustView(
            peer=ANNA,
            standing="proven",
            words="steps contain its work",
            audits=AuditCounts(agree=2, unchecked=1),
            invited_by=[CARLA, BORIS],
        ),
        TrustView(peer=CARLA, standing="probation", words="one step is enough"),
    ],
)
"""A node of which all is known that there may be."""
RESTS = example_snapshot(
    state="paused",
    reason="outside its hours (22:00-07:00)",
    paused=PauseView(reason="", since=60.0, until=3600.0, by_owner=False),
    seats=[],
)
TREE = example_snapshot(
    state="relaying",
    reason="it holds no stage",
    seats=[],
    loss=None,
    tokens_per_s=0.0,
    relay=RelayView(
        through=[ANNA, BORIS], rate_bytes_per_s=2e6, members=1, circuits=2, passed_bytes=999_600
    ),
    reach=ReachView(words="nobody knows"),
    counters=Counters(
        doubled_microbatches=1,
        rounds_committed=8,
        rounds_restarted=3,
        restarts_led={"late": 2, "gone": 2, "alone": 1},
        refused_by_reason={"old": 1500, "strange": 7},
        worker_restarts=2,
    ),
    workers=[WorkerView(pid=8), WorkerView()],
    last_error="the disk is full",
    last_error_at=3600.0,
    names={ANNA: "Anna"},
    contributors=[ContributorView(peer=ANNA, microbatches=1, tokens=9, share=1.0)],
    held_out=HeldOutView(version=2, loss=3.5, bits_per_byte=5.05, tokens=8192, claims=1),
    members=[
        InvitedMember(peer=ANNA, invited_by="", depth=0, linked=True, ours=False),
        InvitedMember(peer=ME, invited_by=ANNA, depth=1, linked=True, ours=False),
        InvitedMember(peer=BORIS, invited_by=ME, depth=2, linked=False, ours=True),
        InvitedMember(peer=CARLA, invited_by=ME, depth=2, linked=False, ours=True,
                      expelled_by=ANNA, reason="lies"),
        InvitedMember(peer="p1", invited_by=ME, depth=2, linked=False, ours=True,
                      expelled_by=ANNA),
    ],
)  # fmt: skip
"""A node that only relays, in a swarm that is entered by invitation, and not all is well."""
LINES = [
    example_snapshot(state="done", reason="the run is complete"),
    example_snapshot(state="waiting", reason="stage 1 has no volunteer", loss=None),
    example_snapshot(loss_vouchers=1, eta_s=7800.0, seats=[]),
    example_snapshot(loss_vouchers=2, seats=[SeatView(stage=1, version=0, state="fetching")]),
]
WORDS_OF_OTHERS = r"# \w+ (?!volunteer_(info|sent_bytes_total) ).*\n"
REPORTS = {
    "status": lambda: report(None, FULL),
    "status-relaying": lambda: report(None, TREE),
    "status-at-first": lambda: report(None, example_snapshot()),
    "peers": lambda: report("peers", FULL),
    "leaderboard": lambda: report("leaderboard", FULL),
    "leaderboard-at-first": lambda: report("leaderboard", example_snapshot()),
    "metrics": lambda: re.sub(WORDS_OF_OTHERS, "", exposition(FULL).decode()),
    "matches": lambda: report("matches", example_snapshot(matches=example_matches())),
    "matches-paused": lambda: report("matches", RESTS),
    "status-paused": lambda: report(None, RESTS),
    "members": lambda: report("members", TREE),
    "members-open": lambda: report("members", FULL),
    "stages": lambda: report("stages", FULL),
    "lines": lambda: "\n".join(map(one_line, (FULL, TREE, RESTS, *LINES))),
}


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", REPORTS)
def test_reports_look_as_kept(name: str, utc: None) -> None:
    """After a change that is meant, set ``UPDATE_SNAPSHOTS=1`` and read the difference."""
    path, text = Path(__file__).parent / "reports" / f"{name}.txt", REPORTS[name]()
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


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


def test_the_longest_reasons_fit_100_columns() -> None:
    wide = example_stage(stage=127, shared_level=999_999.0, obstacle="because " * 30)
    moves = [PayingMove(home=n, to=127) for n in range(20)]
    now = example_snapshot(matches=example_matches(stages=[wide] * 3, paying_moves=moves))
    assert max(map(len, report("matches", now).splitlines())) <= 100


# --- times as people write them ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("", ""),
        ("wrote a file; join with it", "wrote a file;\njoin with it"),
        ("  leave it here, where it is", "  leave it here,\n  where it is"),
        ("  model    gpt of 128 layers", "  model    gpt of\n           128\n           layers"),
        ("state  serves stage 1 now", "state  serves\n       stage 1\n       now"),
        ("volunteer:0123456789abcdef?peer=x", "volunteer:0123456789abcdef?peer=x"),
        ("the rank-one well-known sum", "the rank-one\nwell-known sum"),
    ],
)
def test_lines_are_broken_at_words_and_never_within_an_address(line: str, broken: str) -> None:
    assert wrapped(line, 17) == broken


def test_only_in_a_terminal_and_not_where_a_word_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    for kept in ("address   /ip4/192.0.2.2/tcp/1", "one two three four"):
        assert shown(kept, Terminal()) == kept
    many = "one two three four five"
    assert shown(many, Terminal()) == "one two three four\nfive"
    assert shown(many, io.StringIO()) == many


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("30m", 1800), ("1h30m", 5400), ("1.5 h", 5400), ("2D", 172800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "0s", "-1h", "1h x", "1000d", "2 weeks", "1e9h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        parse_duration(text)
