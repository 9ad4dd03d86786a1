"""A founder's own text: kept in the founder's home, whatever becomes of the file."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from client.cli.models.model_source import kept_tokenizer
from client.errors import ExitCode
from client.store.leaves import DataFolder
from client.store.paths import home_folders
from client.store.swarms import SwarmStore
from client.store.texts import TextStore
from model_zoo.datasets.build import build
from protocol.invite import parse_invite, parse_swarm_file
from tests.support.cli_process import Within
from tests.support.saved_swarms import WORDS
from tests.support.texts import corpus_of


def _create(within: Within, book: Path | str, out: Path) -> dict[str, str]:
    flags = ("--no-measure", "--context", "16", "--json")
    done = within.ends(0, "create", "--data", str(book), "--out", str(out), *flags)
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def test_a_founder_joins_with_the_printed_invite_or_the_name_as_well(
    within: Within, book: Path, tmp_path: Path
) -> None:
    """The invite names nobody but the founder, so the founder's home has to know the swarm."""
    answer = _create(within, book, tmp_path / "x.swarm")
    swarm = parse_swarm_file((tmp_path / "x.swarm").read_text())
    store = SwarmStore(home_folders(tmp_path / "home").swarms)
    known = store.load(parse_invite(answer["invite"]).swarm)
    assert known == swarm
    assert [kept.manifest.name for kept in store.all()] == [answer["name"]]


def test_create_takes_the_text_along(
    within: Within, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named from one folder, found from every other, and after the file was changed or is gone."""
    monkeypatch.chdir(book.parent)
    kept = Path(_create(within, book.name, tmp_path / "x.swarm")["text"])
    digest = parse_swarm_file((tmp_path / "x.swarm").read_text()).manifest.data.digest
    store = TextStore(home_folders(tmp_path / "home").texts)
    assert (kept, store.origin(digest)) == (store.tokens(digest), None)
    book.unlink()
    assert _text(kept) == WORDS
    assert {path.suffix for path in store.folder.iterdir()} == {".tokens", ".origin"}


def _text(kept: Path) -> str:
    corpus = corpus_of(str(kept))
    tokens = np.frombuffer(corpus._read_tokens(0, corpus.spec.size_bytes), "<u2")
    return corpus.text_of(tokens)


def test_a_text_is_tokenized_at_once(within: Within, book: Path, tmp_path: Path) -> None:
    """Tokens and tokenizer are kept in a folder, which is not pruned; no other is left."""
    pytest.importorskip("tokenizers")
    book.write_text(WORDS * 4)
    flags = ("create", "--data", str(book), "--no-measure", "--context", "16", "--json")
    done = within.ends(0, *flags, "--tokenizer", "train:300", "--out", str(tmp_path / "x.swarm"))
    manifest = parse_swarm_file((tmp_path / "x.swarm").read_text()).manifest
    store = TextStore(home_folders(tmp_path / "home").texts)
    kept = store.tokens(manifest.data.digest)
    assert json.loads(done.stdout)["text"] == str(kept)
    assert (manifest.data.name, manifest.name) == ("book.txt", "tiny-book.txt")
    assert manifest.model.vocab == manifest.data.vocab < 300
    assert {path.suffix for path in store.folder.iterdir()} == {".tokens", ".origin"}
    assert within("cache", "--prune", "--yes").returncode == 0
    assert "own-texts" in within("cache").stdout
    whole = DataFolder(kept, manifest.data)
    assert whole.load(0) is not None
    assert kept_tokenizer(manifest, store) is not None


def test_a_folder_of_tokens_is_taken_as_it_is(within: Within, book: Path, tmp_path: Path) -> None:
    """It takes no room twice, and stays when its own folder is removed."""
    pytest.importorskip("tokenizers")
    folder = tmp_path / "tokens"
    build([book], folder, tokenizer=280)
    answer = _create(within, folder, tmp_path / "x.swarm")
    manifest = parse_swarm_file((tmp_path / "x.swarm").read_text()).manifest
    kept = Path(answer["text"])
    store = TextStore(kept.parent)
    assert store.origin(manifest.data.digest) == folder
    assert (kept / "shard-00000.bin").samefile(folder / "shard-00000.bin")
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(folder)
    assert DataFolder(kept, manifest.data).load(0) is not None
    shard = copy / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
    done = within.ends(
        ExitCode.CONFIG, "create", "--data", str(copy), "--no-measure", "--out", "y.swarm"
    )
    assert "is damaged in its part 0 of 256 KiB: build it again" in done.stderr
    again = ("create", "--data", str(copy), "--tokenizer", "train:300", "--out", "y.swarm")
    done = within.ends(ExitCode.USAGE, *again)
    assert "leave --tokenizer out" in done.stderr


@pytest.mark.parametrize("data", ["stdlib", "book.txt"])
@pytest.mark.parametrize("tokenizer", ["bytes", "train:300"])
def test_a_data_folder_that_cannot_be_written_is_said_with_every_tokenizer(
    within: Within, book: Path, tmp_path: Path, tokenizer: str, data: str
) -> None:
    pytest.importorskip("tokenizers")
    texts = home_folders(tmp_path / "home").texts
    texts.parent.mkdir(mode=0o700, parents=True)
    texts.write_text("a file where a folder should be")
    source = data if data == "stdlib" else str(book)
    command = ("create", "--data", source, "--tokenizer", tokenizer, "--no-measure")
    done = within.ends(
        ExitCode.CONFIG, *command, "--context", "16", "--out", str(tmp_path / "x.swarm")
    )
    assert f"{texts}: " in done.stderr
    assert "set data_dir to another disk" in done.stderr


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", ".x"])
def test_a_name_that_leads_out_of_the_folder_is_refused(
    within: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    here = tmp_path / "a" / "b" / "c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    done = within.ends(ExitCode.USAGE, "create", "--no-measure", "--name", name)
    assert "--out" in done.stderr
    assert not list(tmp_path.rglob("*.swarm"))
    within.ends(0, "create", "--no-measure", "--name", name, "--out", "x.swarm")
    assert (here / "x.swarm").exists()
