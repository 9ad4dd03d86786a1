"""``volunteer matches``: readable at 80 columns, honest about records, deaf to tricks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from client.cli.matching.matches_text import matches_report, records_report
from client.cli.matching.records import CheckedRecord, RecordList
from client.cli.terminal.output import printable
from client.control.matches import PayingMove, SeatMatch, StewardshipView
from client.control.server import serve_control
from client.control.sockets import socket_path
from client.store.agreements import load_records, save_records
from client.store.paths import home_folders, runtime_folder
from client.store.swarms import SwarmStore
from protocol.ids import PeerId, Stage
from protocol.invite import parse_swarm_file
from protocol.matching import bodies
from protocol.matching.bodies import Mandate
from protocol.matching.overview import score_parts
from protocol.matching.preferences import MAX_SCORE, score
from protocol.matching.record import MatchRecord
from protocol.wire.envelope import Signer
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider, example_matches, example_stage

ME, STEWARD = Signer(b"\1" * 32), Signer(b"\2" * 32)


def test_the_report_tells_seats_stages_moves_offices_and_reasons() -> None:
    text = " ".join(matches_report(example_matches()).split())
    assert "main stage 0, serving since" in text
    assert "offers 0.5 microbatches/s, score +3/0.52; match record valid" in text
    assert "1. 0 teward committed 1.25 1.1 1/2 1.26 +3/0.52" in text
    assert "gain 0.16 s, lacks copies: your main stage" in text
    assert "not proposing: its cutoff is above us" in text
    assert "not moving: the lower of the two stages would not rise" in text
    assert "(blocking pairs): stage 0 -> 1" in text
    assert "stage 1 (term 1, epoch 4, committed, 2 places, 1 final, 1.25 of 1.26)" in text
    assert "matching-late-answer 1, matching-replay 3" in text
    assert text.endswith("proposing to stage 0")


def test_at_rest_and_at_the_start_nothing_is_left_open() -> None:
    resting = " ".join(matches_report(example_matches(paying_moves=[], refused={})).split())
    assert "(blocking pairs): none" in resting
    assert "refused no messages" in resting
    free = SeatMatch(seat=0, stage=None, state="free")
    text = matches_report(
        example_matches(state="free", seats=[free], stages=[], stewardships=[], explanations=[])
    )
    assert "main      no stage, free" in text
    assert "no stage has a steward yet" in text
    assert "others are the stewards" in text


def test_the_widest_figures_fit_80_columns() -> None:
    wide = example_stage(
        stage=127,
        level=1e11,
        shared_level=999_999.0,
        copies=1000,
        quota=1.234e-5,
        cutoff=MAX_SCORE - 1,
        score=MAX_SCORE - 1,
        our_rate=1e11,
        obstacle="because " * 30,
    )
    office = StewardshipView(
        stage=127, term=1000, epoch=2**31, phase="committed", places=99, final=99, level=9, quota=9
    )
    moves = [PayingMove(home=n, to=127) for n in range(20)]
    now = example_matches(stages=[wide] * 3, paying_moves=moves, stewardships=[office] * 9)
    assert max(map(len, matches_report(now).splitlines())) <= 80


@given(st.text())
def test_words_of_strangers_neither_break_lines_nor_drive_the_terminal(words: str) -> None:
    told = [msgspec.structs.replace(example_matches().explanations[0], words=f"told {words} end")]
    now = example_matches(
        swarm_name="name", stages=[example_stage(obstacle=words)], explanations=told
    )
    text = matches_report(now)
    assert printable(text) == text
    assert "\t" not in text


def test_a_score_can_be_read() -> None:
    peer, stage = PeerId("somebody"), Stage(0)
    made = score(peer, stage, values=(1331, 1000), rate=500_000, phi=1_000_000, fair=1_000_000)
    assert score_parts(made) == (3, 0.5)


# --- the command -----------------------------------------------------------------------------


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # pytest's own folders are too deep for the path of a socket
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        monkeypatch.setenv("VOLUNTEER_HOME", name)
        yield Path(name)


async def test_the_command_shows_what_a_node_says(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = Within(capsys)
    path = socket_path(runtime_folder(home), "ab" * 32, "peer")
    async with serve_control(path, FakeProvider()):
        done = await trio.to_thread.run_sync(ask, "matches")
        assert (done.returncode, done.stderr) == (0, "")
        assert "match record valid" in done.stdout
        detailed = await trio.to_thread.run_sync(ask, "matches", "--all", "--swarm", "example")
        assert "a detail" in detailed.stdout
        as_json = await trio.to_thread.run_sync(ask, "matches", "--json")
        assert json.loads(as_json.stdout)["schema_version"] == 1
        other = await trio.to_thread.run_sync(ask, "matches", "--swarm", "mine")
        assert other.returncode == 3
        assert "no volunteer of swarm mine runs" in other.stderr


@pytest.fixture
def records(within: Within, tmp_path: Path) -> Path:
    """The file of a swarm known here, with two genuine records."""
    path = tmp_path / "x.swarm"
    assert within("create", "--no-measure", "--name", "mine", "--out", str(path)).returncode == 0
    folders = home_folders(tmp_path / "home")
    known = parse_swarm_file(path.read_text())
    SwarmStore(folders.swarms).remember(known)
    file = folders.agreements(known.swarm)
    save_records(file, [record(stage, known.swarm) for stage in (0, 1)])
    return file


def record(stage: int, swarm: str) -> MatchRecord:
    mandate = Mandate(5, 1)
    proposal = bodies.Propose(
        stage, mandate, 1_700_000_000_000, STEWARD.peer, 3, 10, 0, 1_500_000, "free"
    )
    hold = bodies.Hold(stage, mandate, 1_700_000_001_000, ME.peer, 3, 10, 7, 1000, True)
    return MatchRecord(
        ME.sign("propose", bodies.encode_body(proposal), swarm),
        STEWARD.sign("hold", bodies.encode_body(hold), swarm),
    )


def test_records_are_listed_and_checked_without_a_node(records: Path, within: Within) -> None:
    done = within("matches", "--records", "--swarm", "mine")
    assert done.returncode == 0
    assert "2 match records of mine" in done.stdout
    assert "all valid" in done.stdout
    assert f"{STEWARD.peer[-6:]} for {ME.peer[-6:]}" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    told = json.loads(within("matches", "--records", "--json").stdout)
    assert [entry["match"]["stage"] for entry in told["records"]] == [1, 0]
    assert {entry["match"]["rate"] for entry in told["records"]} == {1.5}


def test_a_tampered_record_is_said_to_be_invalid(records: Path, within: Within) -> None:
    genuine, other = load_records(records)
    swapped = MatchRecord(other.proposal, genuine.hold)
    hold = genuine.hold
    flipped = msgspec.structs.replace(hold, body=bytes([*hold.body[:-1], hold.body[-1] ^ 1]))
    save_records(records, [genuine, swapped, MatchRecord(genuine.proposal, flipped)])
    done = within("matches", "--records")
    assert done.returncode == 1
    assert "2 INVALID" in done.stdout
    assert "bad-signature" in done.stdout
    assert "match-record-unrelated" in done.stdout
    told = json.loads(within("matches", "--records", "--json").stdout)["records"]
    assert [entry["valid"] for entry in told] == [False, False, True]
    assert [entry["match"] is None for entry in told] == [True, True, False]


def test_a_damaged_file_is_an_error_with_a_next_step(records: Path, within: Within) -> None:
    records.write_bytes(b"nonsense")
    done = within("matches", "--records")
    assert done.returncode == 1
    assert "damaged" in done.stderr
    assert "remove it" in done.stderr


def test_no_records_are_no_error(records: Path, within: Within) -> None:
    records.unlink()
    assert within("matches", "--records").stdout == "no match records\n"


def test_problems_of_records_are_one_line_of_80_columns() -> None:
    bad = CheckedRecord(valid=False, problem="\x1b[2J" + "wrong " * 30)
    text = records_report(RecordList(swarm="ab" * 32, swarm_name="x", records=[bad]))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
