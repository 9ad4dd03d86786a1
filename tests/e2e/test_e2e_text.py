"""A founder's own text: from ``create`` to volunteers without it, and to the exported model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from client.lab.local_swarm import LocalSwarm, Member
from client.store.paths import home_folders
from client.store.texts import TextStore
from tests.support.e2e_local import (
    HOST,
    environment,
    in_state,
    volunteer,
    wait_for,
)

pytestmark = pytest.mark.long
FLAGS = ("--listen-host", HOST, "--threads", "1")
MODEL = ("--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--stages", "1")
RUN = ("--steps", "50000", "--microbatch", "2", "--microbatches", "4", "--no-measure")


@pytest.fixture
def book(folder: Path) -> Path:
    path = folder / "books" / "book.txt"
    path.parent.mkdir()
    path.write_text("".join(f"{n} quick brown foxes jump over the lazy dog\n" for n in range(999)))
    return path


def _create(home: Path, book: Path, out: Path, *more: str) -> TextStore:
    """Found a swarm with a text that is named as seen from its own folder."""
    command = [sys.executable, "-m", "client.cli.main", "create", "--data", book.name]
    subprocess.run(
        [*command, *MODEL, *RUN, "--name", "e2e", "--out", str(out), *more],
        env={**environment(home), "VOLUNTEER_LISTEN_HOST": HOST},
        cwd=book.parent,
        check=True,
        capture_output=True,
        timeout=120,
    )
    return TextStore(home_folders(home).texts)


def _first_line(member: Member) -> bool:
    told = volunteer(member.home, "logs").stdout
    return "takes part in e2e" in told and f"reached at /ip4/{HOST}/tcp/" in told


def test_tokens_and_their_tokenizer_reach_who_never_had_them(
    folder: Path, book: Path, processes: LocalSwarm
) -> None:
    """The second volunteer copies both; who only looks on gets the tokenizer with the model."""
    pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = book.read_text()
    extra = ("--tokenizer", "train:300", "--checkpoint-every", "200")
    _create(folder / "volunteer-1", book, folder / "x.swarm", *extra)
    book.unlink()
    founder = processes.start("volunteer-1", FLAGS)
    founder.wait_until_it_answers(60.0)
    wait_for(lambda: _first_line(founder) or None, "it says what it is", [founder])
    second = processes.start("volunteer-2", FLAGS)
    in_state(second, [founder, second], "training")
    out = folder / "model"
    command = ("export", "--swarm", str(folder / "x.swarm"), "--out", str(out))

    def exported() -> bool | None:
        return volunteer(folder / "looks-on", *command, "--force").returncode == 0 or None

    wait_for(exported, "a version is on the disks", [founder, second])
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(tokenizer(words[:99]).input_ids) == words[:99]
    kept = volunteer(second.home, *command, "--force", "--json")
    assert json.loads(kept.stdout)["version"] > 0
    sample = volunteer(second.home, "sample", "7 quick", "--length", "5", "--json")
    assert json.loads(sample.stdout)["prompt"] == "7 quick"
