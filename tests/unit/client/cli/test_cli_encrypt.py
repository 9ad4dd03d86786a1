"""``volunteer encrypt``: what was plain is encrypted, and nothing opens it but the passphrase."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import at_rest
from client.cli.diagnosis.checks import check_at_rest
from client.compute.checkpoint import build_header
from client.compute.state_hash import state_hash
from client.errors import ExitCode
from client.store import rest_key
from client.store.identity import IdentityLock
from client.store.paths import home_folders, make_private
from tests.support.cli_process import Within

WORDS = b"quick brown foxes jump over the lazy dog"
SWARM = "ab" * 32


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A passphrase that takes no second, in a file."""
    save = rest_key.save_key
    monkeypatch.setattr(
        "client.cli.commands.encrypt.save_key",
        lambda *arguments: save(*arguments, operations=1, memory_bytes=8192),
    )
    (tmp_path / "passphrase").write_text("correct horse\n")
    monkeypatch.setenv("VOLUNTEER_PASSPHRASE_FILE", str(tmp_path / "passphrase"))
    yield
    at_rest.use(None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A home with a text, a checkpoint, one that was set aside, and leftovers."""
    folders = home_folders(tmp_path / "home")
    make_private(folders.data)
    folders.texts.mkdir()
    (folders.texts / f"{'cd' * 32}.bin").write_bytes(WORDS * 40_000)
    (folders.texts / f"{'cd' * 32}.origin").write_bytes(b"/books/book.txt")
    checkpoints = folders.checkpoints(SWARM)
    checkpoints.mkdir(parents=True)
    weights = WORDS * 12
    digest = state_hash(3, memoryview(weights))
    header = build_header(
        swarm=SWARM, stage=0, stages=1, version=3, digest=digest, layout=(("w", (40,)),)
    )
    for name in ("stage-0-v3.safetensors", "stage-0-v9.safetensors.set-aside"):
        (checkpoints / name).write_bytes(header + weights)
    (checkpoints / "lineage.bin").write_bytes(b"no text and no weights")
    snapshots = folders.data / "snapshots"
    snapshots.mkdir()
    for left in (snapshots / "snapshot-0-v3", checkpoints / ".stage-0-v4.buddy.tmp"):
        left.write_bytes(weights)
    return folders.data


def contents(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def shows_words(data: Path) -> list[str]:
    return sorted(path.name for path, found in contents(data).items() if WORDS in found)


def test_everything_is_encrypted_and_decrypted_again(data: Path, within: Within) -> None:
    before = contents(data)
    done = within("encrypt", "--json")
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["converted"]) == 3
    assert not shows_words(data)
    assert check_at_rest(data).words == "3 files of text and weights are encrypted"
    for beside in ("*.origin", "lineage.bin"):
        (path,) = data.rglob(beside)
        assert path.read_bytes() == before[path]
    verified = within("checkpoint", "verify", "--json")
    assert verified.returncode == 0, verified.stdout
    assert not within("encrypt", "--json").returncode
    at_rest.use(None)
    assert within("encrypt", "--undo").returncode == 0
    after = contents(data)
    assert {path: after[path] for path in after if path.suffix != ".lock"} == {
        path: found
        for path, found in before.items()
        if "snapshots" not in path.parts and not path.name.endswith(".tmp")
    }


def test_a_wrong_passphrase_changes_nothing(data: Path, within: Within, tmp_path: Path) -> None:
    assert within("encrypt").returncode == 0
    before = contents(data)
    (tmp_path / "passphrase").write_text("wrong\n")
    at_rest.use(None)
    for command in (["encrypt"], ["encrypt", "--undo"], ["checkpoint", "verify"]):
        done = within(*command)
        assert done.returncode == ExitCode.REFUSED
        assert "the passphrase is wrong" in done.stderr
    assert contents(data) == before


def test_an_interrupted_conversion_is_finished(
    data: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("client.cli.commands.encrypt.rewrite", full)
        assert within("encrypt").returncode == ExitCode.RUNTIME
    assert check_at_rest(data).status == "warn"
    assert within("encrypt").returncode == 0
    assert check_at_rest(data).status == "ok"
    assert not shows_words(data)


def test_the_passphrase_can_be_changed(
    data: Path, within: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert within("encrypt", "--change-passphrase").returncode == ExitCode.RUNTIME
    assert within("encrypt").returncode == 0
    (tmp_path / "new").write_text("new\n")
    monkeypatch.setenv("VOLUNTEER_NEW_PASSPHRASE_FILE", str(tmp_path / "new"))
    assert within("encrypt", "--change-passphrase").returncode == 0
    assert within("checkpoint", "verify").returncode == ExitCode.REFUSED
    monkeypatch.setenv("VOLUNTEER_PASSPHRASE_FILE", str(tmp_path / "new"))
    assert within("checkpoint", "verify").returncode == 0


def test_it_waits_for_no_running_volunteer(data: Path, within: Within) -> None:
    with IdentityLock(data):
        assert within("encrypt").returncode == ExitCode.TEMPORARY
    assert shows_words(data)


def test_a_damaged_file_ends_the_decryption_and_the_key_stays(data: Path, within: Within) -> None:
    assert within("encrypt").returncode == 0
    path = data / "checkpoints" / SWARM / "stage-0-v3.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert within("checkpoint", "verify").returncode == ExitCode.RUNTIME
    done = within("encrypt", "--undo")
    assert done.returncode == ExitCode.RUNTIME
    assert "stage-0-v3.safetensors: it is encrypted, and damaged" in done.stderr
    assert rest_key.has_key(data)
    path.unlink()
    assert within("encrypt", "--undo").returncode == 0


@pytest.mark.parametrize("content", [b"", b"\n", b"x" * 5000])
def test_a_file_without_a_passphrase_is_refused(
    data: Path, within: Within, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "passphrase").write_bytes(content)
    done = within("encrypt")
    assert done.returncode == ExitCode.CONFIG
    assert "VOLUNTEER_PASSPHRASE_FILE" in done.stderr
    assert not rest_key.has_key(data)


def test_without_a_terminal_it_says_how_to_give_the_passphrase(
    data: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert within("encrypt").returncode == 0
    monkeypatch.delenv("VOLUNTEER_PASSPHRASE_FILE")
    done = within("checkpoint", "ls")
    assert done.returncode == ExitCode.CONFIG
    assert "set VOLUNTEER_PASSPHRASE_FILE" in done.stderr


def test_the_passphrase_may_come_through_a_descriptor(
    data: Path, within: Within, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert within("encrypt").returncode == 0
    with (tmp_path / "passphrase").open() as file:
        monkeypatch.setenv("VOLUNTEER_PASSPHRASE_FILE", f"/dev/fd/{file.fileno()}")
        assert within("checkpoint", "ls").returncode == 0


def test_without_its_key_nothing_goes_on_in_plain(data: Path, within: Within) -> None:
    assert within("encrypt").returncode == 0
    (data / rest_key.FILE_NAME).unlink()
    before = contents(data)
    for command in (["encrypt"], ["checkpoint", "ls"]):
        done = within(*command)
        assert done.returncode == ExitCode.CONFIG
        assert "3 files are encrypted, and the key" in done.stderr
    assert contents(data) == before
    check = check_at_rest(data)
    assert check.status == "fail"
    assert "missing" in check.words
