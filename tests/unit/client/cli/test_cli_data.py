"""``volunteer data``: builds, lists, verifies and shows; bad input has words and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client.errors import ExitCode
from tests.support.cli_process import Within

pytest.importorskip("tokenizers")
WORDS = "the quick brown fox jumps over the lazy dog\n" * 99


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(WORDS)
    return path


def test_from_text_to_tokens_and_back(within: Within, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    done = within("data", "build", str(book), "--tokenizer", "train:300", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(out)
    assert "made of one text" in done.stderr
    verified = json.loads(within("data", "verify", str(out), "--json").stdout)
    assert (verified["text_bytes"], verified["damaged"]) == (len(WORDS), [])
    listed = json.loads(within("data", "ls", str(tmp_path), "--json").stdout)
    assert [found["root"] for found in listed["folders"]] == [verified["root"]]
    shown = within("data", "show", "2", str(out), "--context", "8", "--json")
    (text,) = json.loads(shown.stdout)["texts"]
    assert text in WORDS * 2
    again = within("data", "show", "2", str(out), "--context", "8")
    assert again.stdout == text + "\n"


def test_conversations_are_built_shown_and_founded(within: Within, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(60)]
    talk, out = tmp_path / "talk.jsonl", tmp_path / "tokens"
    talk.write_text("\n".join(map(json.dumps, rows)))
    done = within("data", "build", str(talk), "--chat", "--context", "16", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "are learned" in done.stderr
    assert "are padding" in done.stderr
    shown = json.loads(within("data", "show", "0", str(out), "--json").stdout)
    number = int(shown["learned"][0])
    assert shown["texts"][0].startswith(f"{number - 1}+1={number}\n")
    assert max(shown["tokens"][0]) < 256
    swarm = ("--data", str(out), "--stages", "2", "--no-measure")
    founded = within("create", *swarm, "--out", str(tmp_path / "s.swarm"))
    assert founded.returncode == 0, founded.stderr
    refused = within("create", *swarm, "--context", "32", "--out", str(tmp_path / "t"))
    assert refused.returncode == ExitCode.CONFIG
    assert "cut for a context of 16, not of 32: choose --context 16" in refused.stderr


def test_damage_is_said_and_counts_as_failure(within: Within, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    within("data", "build", str(book), "--out", str(out))
    shard = out / "shard-00000.bin"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    done = within("data", "verify", str(out))
    assert done.returncode == 1
    assert "damaged parts of 256 KiB: 0; remove the folder" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("build", "--out", "x"), "nothing to read", ExitCode.USAGE),
        (("build", "nowhere.txt", "--out", "x"), "does not exist", ExitCode.CONFIG),
        (("build", "book.txt", "--out", "x", "--tokenizer", "y"), "train:16384", ExitCode.CONFIG),
        (("build", "book.txt", "--out", "x", "--chat"), "cannot have conv", ExitCode.CONFIG),
        (("build", "book.txt", "--out", "x", "--context", "9"), "add --chat", ExitCode.USAGE),
        (("verify", "."), "no data folder", ExitCode.CONFIG),
        (("show", "0", "."), "no data folder", ExitCode.CONFIG),
    ],
)
def test_bad_input_has_words(
    within: Within,
    book: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
    code: ExitCode,
) -> None:
    monkeypatch.chdir(book.parent)
    done = within("data", *arguments)
    assert done.returncode == code
    assert words in done.stderr
