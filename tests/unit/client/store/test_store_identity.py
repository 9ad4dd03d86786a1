"""The identity file: private, whole, one per folder, one process at a time."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from client.errors import ExitCode, UserError
from client.store.identity import KEY_FILE, ensure_identity, load_identity
from client.store.lock import identity_lock, lock_holder
from protocol.wire.envelope import Signer
from tests.support.cli_process import LOCK, living
from tests.support.full_disk import full


def test_an_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    assert load_identity(tmp_path) is None
    first = ensure_identity(tmp_path)
    (tmp_path.parent / "other").mkdir()
    assert ensure_identity(tmp_path.parent / "other").peer != first.peer
    assert ensure_identity(tmp_path).peer == first.peer
    seed = load_identity(tmp_path)
    assert seed is not None
    assert Signer(seed).peer == first.peer
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o601])
def test_a_key_that_others_can_read_is_refused_with_the_mend(tmp_path: Path, mode: int) -> None:
    ensure_identity(tmp_path)
    (tmp_path / KEY_FILE).chmod(mode)
    with pytest.raises(UserError, match="others can read") as caught:
        ensure_identity(tmp_path)
    assert caught.value.exit_code == ExitCode.REFUSED
    assert f"chmod 600 {tmp_path / KEY_FILE}" in caught.value.next_step
    (tmp_path / KEY_FILE).chmod(0o600)
    ensure_identity(tmp_path)


@pytest.mark.parametrize("size", [0, 31, 33, 4096])
def test_a_damaged_key_is_refused_and_kept(tmp_path: Path, size: int) -> None:
    path = tmp_path / KEY_FILE
    path.write_bytes(b"k" * size)
    path.chmod(0o600)
    with pytest.raises(UserError, match="damaged"):
        ensure_identity(tmp_path)
    assert path.stat().st_size == size


def test_links_folders_and_pipes_are_no_keys(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"k" * 32)
    (tmp_path / KEY_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot read"):
        load_identity(tmp_path)
    (tmp_path / KEY_FILE).unlink()
    (tmp_path / KEY_FILE).mkdir()
    with pytest.raises(UserError, match="not a file that you own"):
        load_identity(tmp_path)
    (tmp_path / KEY_FILE).rmdir()
    os.mkfifo(tmp_path / KEY_FILE)
    with pytest.raises(UserError, match="not a file that you own"):
        load_identity(tmp_path)


def test_a_process_that_loses_the_race_takes_the_winners_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner = b"w" * 32
    link = os.link

    def slower(source: str, target: Path) -> None:
        target.write_bytes(winner)
        target.chmod(0o600)
        link(source, target)

    monkeypatch.setattr(os, "link", slower)
    assert ensure_identity(tmp_path).peer == Signer(winner).peer
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]
    (tmp_path / KEY_FILE).unlink()
    monkeypatch.setattr(os, "link", lambda *_: None)
    with pytest.raises(UserError, match="vanished"):
        ensure_identity(tmp_path)


def test_a_full_disk_leaves_no_half_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        ensure_identity(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_process_per_identity(tmp_path: Path) -> None:
    with living(LOCK, str(tmp_path)) as holder:
        with pytest.raises(UserError, match=f"process {holder.pid} already") as caught:
            identity_lock(tmp_path).__enter__()
        assert caught.value.exit_code == ExitCode.TEMPORARY
        assert "VOLUNTEER_HOME" in caught.value.next_step
    # not even a kill leaves a stale lock
    with identity_lock(tmp_path):
        pass


def test_a_lock_is_held_once_though_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (str(os.getpid()), "another already runs"):
        with identity_lock(tmp_path), pytest.raises(UserError, match=words):
            identity_lock(tmp_path).__enter__()
        monkeypatch.setattr(os, "pwrite", full)


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre and NFS may be."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(UserError, match=r"has no locks: Function not implemented") as caught:
        identity_lock(tmp_path).__enter__()
    assert "VOLUNTEER_HOME" in caught.value.next_step
    assert not lock_holder(tmp_path)
