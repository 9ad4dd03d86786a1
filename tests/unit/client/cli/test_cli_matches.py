"""``volunteer status matches``: readable, deaf to tricks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from client.cli.terminal.output import printable
from client.control.matches import PayingMove
from client.control.server import serve_control
from client.control.sockets import socket_path
from client.store.paths import runtime_folder
from client.views.report import matches_report
from tests.support.cli_process import Within
from tests.support.control_fakes import (
    FakeProvider,
    example_matches,
    example_snapshot,
    example_stage,
)


def test_the_report_tells_stages_moves_and_reasons() -> None:
    text = " ".join(matches_report(example_snapshot(), example_matches()).split())
    assert "You hold stage 0." in text
    assert "A move from stage 0 to stage 1 would speed the training up" in text
    assert "others fit it better (its cutoff is above us" in text
    assert "At the moment you do for stage 1." in text


def test_the_longest_reasons_fit_100_columns() -> None:
    wide = example_stage(stage=127, shared_level=999_999.0, obstacle="because " * 30)
    moves = [PayingMove(home=n, to=127) for n in range(20)]
    now = example_matches(stages=[wide] * 3, paying_moves=moves)
    assert max(map(len, matches_report(example_snapshot(), now).splitlines())) <= 100


@given(st.text())
def test_words_of_strangers_neither_break_lines_nor_drive_the_terminal(words: str) -> None:
    now = example_matches(stages=[example_stage(obstacle=words)])
    text = matches_report(example_snapshot(), now)
    assert printable(text) == text
    assert "\t" not in text


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
        done = await trio.to_thread.run_sync(ask, "status", "matches")
        assert (done.returncode, done.stderr) == (0, "")
        assert "You hold stage 0." in done.stdout
        as_json = await trio.to_thread.run_sync(ask, "status", "matches", "--json")
        assert json.loads(as_json.stdout)["schema_version"] == 1
        other = await trio.to_thread.run_sync(ask, "status", "matches", "--swarm", "mine")
        assert other.returncode == 3
        assert "no volunteer of swarm mine runs" in other.stderr
