"""``volunteer data``: builds, verifies and shows; bad input has words and an exit code."""

import json
import sys
from pathlib import Path

import pytest

from client.cli.founding import tokenizing
from client.errors import ExitCode
from tests.support.cli_process import Terminal, Within
from tests.support.saved_swarms import WORDS

pytest.importorskip("tokenizers")


def test_from_text_to_tokens_and_back(within: Within, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    done = within.ends(0, "data", "build", str(book), "--tokenizer", "train:300", "--out", str(out))
    assert done.stdout.strip() == str(out)
    assert "made of one text" in done.stderr
    build = ("data", "build", str(book), "--tokenizer", "train:300", "--out", str(out))
    again = json.loads(within(*build, "--json").stdout)
    assert again["index"]["tally"]["text_bytes"] == len(WORDS)
    shown = within("data", "show", "2", str(out), "--context", "8", "--json")
    (text,) = json.loads(shown.stdout)["texts"]
    assert text in WORDS * 2
    again = within("data", "show", "2", str(out), "--context", "8")
    assert again.stdout == text + "\n"


def test_conversations_are_built_shown_and_founded(within: Within, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(60)]
    talk, out = tmp_path / "talk.jsonl", tmp_path / "tokens"
    talk.write_text("\n".join(map(json.dumps, rows)))
    build = ("data", "build", str(talk), "--chat", "--context", "16")
    done = within.ends(0, *build, "--out", str(out))
    assert "are learned" in done.stderr
    assert "are padding" in done.stderr
    shown = json.loads(within("data", "show", "0", str(out), "--json").stdout)
    numbers = [int(each) for each in shown["learned"][0].split()]
    assert all(f"{number - 1}+1={number}\n" in shown["texts"][0] for number in numbers)
    assert max(shown["tokens"][0]) < 256
    swarm = ("--data", str(out), "--stages", "2", "--no-measure")
    within.ends(0, "create", *swarm, "--out", str(tmp_path / "s.swarm"))
    refused = within.ends(
        ExitCode.CONFIG, "create", *swarm, "--context", "32", "--out", str(tmp_path / "t")
    )
    assert "cut for a context of 16, not of 32: choose --context 16" in refused.stderr


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


def _build(within: Within, path: Path, line: str, count: int) -> None:
    path.with_suffix(".txt").write_text("".join(f"{n} {line}\n" for n in range(count)))
    within.ends(0, "data", "build", str(path.with_suffix(".txt")), "--out", str(path))


def test_folders_are_mixed_shown_founded_and_planned(within: Within, tmp_path: Path) -> None:
    web, code, out = tmp_path / "web", tmp_path / "code", str(tmp_path / "mixed")
    _build(within, web, "the quick brown fox", 2000)
    _build(within, code, "def f(x): return x", 100)
    mixed = ("data", "mix", f"{web}:0.75", f"{code}:0.25", "--out", out)
    done = within.ends(0, *mixed)
    assert done.stdout.strip() == out
    assert "code  2,190   25.00%" in done.stderr
    assert "these parts are read more than 4 times: code 5.8 times" in done.stderr
    again = within(*mixed, "--json")
    found = json.loads(again.stdout)["parts"]
    assert [(part["name"], part["weight"], part["share"]) for part in found] == [
        ("web", 3, 0.75),
        ("code", 1, 0.25),
    ]
    show = ("data", "show", "0", out, "--context", "64", "--microbatch", "4")
    shown = json.loads(within(*show, "--json").stdout)
    assert sorted(shown["parts"]) == ["code", "web", "web", "web"]
    for part, text in zip(shown["parts"], shown["texts"], strict=True):
        assert ("return" if part == "code" else "quick") in text
    plain = within(*show)
    assert plain.stdout.count("from web:") == 3
    swarm = tmp_path / "s.swarm"
    create = ("create", "--data", out, "--no-measure", "--context")
    founded = within.ends(0, *create, "64", "--out", str(swarm))
    assert "a mixture of web 75.00%, " in founded.stderr
    assert "in this run these parts are read more than 4 times: web " in founded.stderr
    planned = within("plan", "--swarm", str(swarm), "--tokens", "46080")
    # 720 windows of 64, of which 180 are code's: of its 34 windows 3 are held out
    assert "these parts are read more than 4 times: code 5.8 times" in planned.stdout
    short = within.ends(ExitCode.CONFIG, *create, "4096", "--out", str(tmp_path / "t.swarm"))
    assert "the part code of" in short.stderr
    assert "has 2190 tokens, and a sample needs 4097" in short.stderr
