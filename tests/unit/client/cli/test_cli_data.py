"""``volunteer data``: what is told of many rows, and while it goes on."""

import sys
from pathlib import Path

import pytest

from client.cli.founding import tokenizing
from tests.support.cli_process import Terminal, Within


def test_of_many_rows_that_cannot_be_used_the_first_are_shown(
    within: Within, tmp_path: Path
) -> None:
    rows, out = tmp_path / "rows.jsonl", str(tmp_path / "tokens")
    rows.write_text('{"text": "good"}\n' + '{"body": "x"}\n' * 120)
    done = within.ends(0, "data", "build", str(rows), "--out", out)
    assert "note: 120 of 121 rows cannot be used and are left out:" in done.stderr
    assert done.stderr.count("has no string field") == 8
    assert "  and 112 more" in done.stderr


def test_without_a_terminal_progress_comes_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(tokenizing, "monotonic", lambda: now[0])
    with tokenizing.BuildLine() as line:
        for second in range(26):
            now[0] = float(second)
            line.show(second, 100)
    assert capsys.readouterr().err == (
        "tokenizing 10%, 1 B/s, 90 s left\ntokenizing 20%, 1 B/s, 80 s left\n"
    )
    monkeypatch.setenv("COLUMNS", "22")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with tokenizing.BuildLine("mixing") as line:
        for now[0], bytes_ in ((100.0, 10), (102.0, 60)):
            line.show(bytes_, 100)
    assert terminal.getvalue() == "\r\x1b[Kmixing 10%\r\x1b[Kmixing 60%, 25 B/s, 2\n"
