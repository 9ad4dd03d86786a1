"""Atomic files, folders, checkpoints and remembered swarms."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from client.control.sockets import MAX_SOCKET_PATH_BYTES
from client.errors import UserError
from client.store.atomic import is_temporary, replacing, write_atomic
from client.store.checkpoints import CheckpointFolder
from client.store.paths import SOCKET_NAME_BYTES, find_folders, make_private, runtime_below
from client.store.positioned import read_at, write_at
from client.store.swarms import MAX_OF_ONE, SwarmStore
from protocol.address import Address
from protocol.ids import SwarmId
from protocol.invite import MAX_PEERS, SwarmFile
from tests.support.full_disk import files_of_at_most
from tests.support.protocol_examples import manifest, peer, signer


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_atomic(path, b"two", mode=0o644)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with files_of_at_most(64 * 1024), pytest.raises(OSError, match="large"):
        write_atomic(path, b"x" * 200_000)

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"new but not all")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_data_is_flushed_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Mock(fsync=Mock(wraps=os.fsync), replace=Mock(wraps=os.replace))
    monkeypatch.setattr(os, "fsync", calls.fsync)
    monkeypatch.setattr(os, "replace", calls.replace)
    write_atomic(tmp_path / "file", b"data")
    assert [name for name, *_ in calls.mock_calls] == ["fsync", "replace", "fsync"]
    calls.reset_mock()
    (tmp_path / "fetched").write_bytes(b"c")
    found = CheckpointFolder(tmp_path)
    assert found.adopt(tmp_path / "fetched", 3, 50) == found.path(3, 50)
    assert [name for name, *_ in calls.mock_calls] == ["fsync", "replace", "fsync"]
    assert [(one.stage, one.version) for one in found.entries()] == [(3, 50)]


def test_home_overrides_every_folder(tmp_path: Path) -> None:
    folders = find_folders({"VOLUNTEER_HOME": str(tmp_path)})
    for folder in (folders.config, folders.data):
        assert folder.is_relative_to(tmp_path)
    elsewhere = find_folders({"VOLUNTEER_HOME": str(tmp_path)}, data=Path("/elsewhere"))
    assert elsewhere.data == Path("/elsewhere")
    assert elsewhere.swarms == Path("/elsewhere/swarms")


def test_a_volunteer_is_found_again_after_its_user_has_logged_out() -> None:
    """The session's runtime folder, with what was in it, is removed then."""
    assert find_folders({"XDG_RUNTIME_DIR": "/run/user/1000"}) == find_folders({})


def test_sockets_fit_whatever_the_home_is() -> None:
    short = Path("/home/v/run")
    assert runtime_below(short) == short
    deep = Path("/home") / ("d" * 200) / "run"
    instead = runtime_below(deep)
    assert len(os.fsencode(instead)) + 1 + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES
    assert instead == runtime_below(deep)
    assert instead != runtime_below(deep / "other")


def test_private_folders_are_so_up_to_what_was_there(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "a" / "b")
    for made in (folder, folder.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert make_private(made) == made


@pytest.mark.parametrize(
    ("readable", "good", "bad", "words", "mend"),
    [
        (False, 0o700, 0o750, "other users can enter", "chmod 700"),
        (True, 0o755, 0o775, "other users can write", "chmod go-w"),
    ],
)
def test_a_folder_that_others_may_use_is_refused_with_the_mend(
    tmp_path: Path, readable: bool, good: int, bad: int, words: str, mend: str
) -> None:
    tmp_path.chmod(good)
    assert make_private(tmp_path, readable=readable) == tmp_path
    tmp_path.chmod(bad)
    with pytest.raises(UserError, match=words) as caught:
        make_private(tmp_path, readable=readable)
    assert f"{mend} {tmp_path}" in caught.value.next_step


def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot use"):
        make_private(tmp_path / "file")
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UserError, match="not a folder that you own"):
        make_private(tmp_path / "link")


def checkpoints(folder: Path, names: list[str]) -> CheckpointFolder:
    for name in names:
        (folder / name).write_bytes(b"c")
    return CheckpointFolder(folder, keep=2)


def test_checkpoints_are_found_by_number_not_by_text(tmp_path: Path) -> None:
    found = checkpoints(
        tmp_path,
        [
            "stage-0-v9.safetensors",
            "stage-0-v10.safetensors",
            "stage-1-v9.safetensors",
            ".stage-0-v11.safetensors.abc.tmp",
            "stage-0-v012.safetensors",
            "stage-0-v12.safetensors.part",
            "stage-x-v12.safetensors",
            "notes.txt",
        ],
    )
    (tmp_path / "stage-0-v99.safetensors").mkdir()
    entries = found.entries()
    newest = max(one for one in entries if one.stage == 0)
    assert (newest.version, newest.path) == (10, found.path(0, 10))
    assert len(entries) == 3
    assert CheckpointFolder(tmp_path / "missing").entries() == []


def versions(folder: CheckpointFolder) -> list[tuple[int, int]]:
    return [(one.stage, one.version) for one in folder.entries()]


def test_retention_keeps_the_newest_of_a_stage_and_what_every_stage_has(tmp_path: Path) -> None:
    names = [f"stage-{s}-v{v}.safetensors" for s in (0, 1) for v in (5, 50, 500)]
    found = checkpoints(tmp_path, [*names, "notes.txt"])
    found.retain()
    assert versions(found) == [(s, v) for s in (0, 1) for v in (50, 500)]
    assert (tmp_path / "notes.txt").exists()
    CheckpointFolder(tmp_path, keep=1).retain({(0, 50)})
    assert versions(found) == [(0, 50), (0, 500), (1, 500)]
    checkpoints(tmp_path, names).retain({(1, 5)}, stage=0, keep=1)
    assert versions(found) == [(0, 500), *((1, v) for v in (5, 50, 500))]
    with pytest.raises(ValueError, match="at least one"):
        CheckpointFolder(tmp_path, keep=0)


def test_leftovers_are_swept(tmp_path: Path) -> None:
    found = checkpoints(tmp_path, ["stage-0-v1.safetensors", ".stage-0-v2.safetensors.q1.tmp"])
    found.sweep()
    assert not any(is_temporary(path) for path in tmp_path.iterdir())
    assert [(one.stage, one.version) for one in found.entries()] == [(0, 1)]


def swarm_file(*ports: int, seed: int = 7, ticket: bytes | None = None) -> SwarmFile:
    plan = manifest(peer(1), seed=seed)
    encoded, signature = signer(1).sign_manifest(plan)
    peers = tuple(Address("ip4", "203.0.113.7", port, peer(2)) for port in ports)
    return SwarmFile(plan, encoded, signature, peers, ticket)


def ports(swarm: SwarmFile | None) -> list[int]:
    return [address.port for address in swarm.peers]


def test_swarms_are_remembered(tmp_path: Path) -> None:
    store = SwarmStore(tmp_path / "swarms")
    assert store.all() == []
    one, two = swarm_file(1), swarm_file(2, seed=8, ticket=b"s" * 32)
    store.remember(one)
    store.remember(two)
    assert store.load(one.swarm) == one
    assert {swarm.swarm for swarm in store.all()} == {one.swarm, two.swarm}
    assert stat.S_IMODE((tmp_path / "swarms" / f"{two.swarm}.swarm").stat().st_mode) == 0o600


def test_members_met_come_first_and_the_invite_stays(tmp_path: Path) -> None:
    store = SwarmStore(tmp_path)
    store.remember(swarm_file(1, 2, ticket=b"s" * 32))
    swarm = swarm_file().swarm
    store.meet(swarm, [Address("ip4", "203.0.113.7", port, peer(2)) for port in (3, 2)])
    assert ports(store.load(swarm)) == [3, 2, 1]
    store.remember(swarm_file(4))
    known = store.load(swarm)
    assert ports(known) == [4, 3, 2, 1]
    assert known.ticket == b"s" * 32
    store.meet(swarm, [Address("ip4", "203.0.113.7", port, peer(2)) for port in range(10, 99)])
    assert ports(store.load(swarm))[:MAX_OF_ONE] == [10, 11, 12, 13]
    assert len(ports(store.load(swarm))) < MAX_PEERS
    store.meet(swarm, [Address("ip4", "203.0.113.7", port, peer(port)) for port in range(10, 99)])
    assert len(ports(store.load(swarm))) == MAX_PEERS


def test_damaged_and_misnamed_swarms_are_passed_over(tmp_path: Path) -> None:
    store = SwarmStore(tmp_path)
    good = swarm_file(1)
    store.remember(good)
    (tmp_path / f"{'0' * 64}.swarm").write_text(str(swarm_file(1)))  # another swarm's content
    (tmp_path / f"{'1' * 64}.swarm").write_bytes(b"\xff\xfe")
    (tmp_path / f"{'2' * 64}.swarm").write_text(str(good).replace("seed", "sead"))
    (tmp_path / "x.swarm").write_text(str(good))
    assert [swarm.swarm for swarm in store.all()] == [good.swarm]
    assert store.load(SwarmId("../" + good.swarm)) is None
    store.meet(SwarmId("3" * 64), [])


def test_what_was_put_away_before_stays(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    put_away = []
    for text in ("one", "two", "three"):
        folder.path(0, 5).write_text(text)
        (entry,) = folder.entries()
        put_away.append(folder.condemn(entry))
    assert [path.read_text() for path in put_away] == ["one", "two", "three"]
    assert [path.name for path in put_away] == [
        "stage-0-v5.safetensors.damaged",
        "stage-0-v5.safetensors.damaged-2",
        "stage-0-v5.safetensors.damaged-3",
    ]
    assert folder.entries() == []


def test_what_is_set_aside_is_not_looked_at(tmp_path: Path) -> None:
    found = checkpoints(tmp_path, ["stage-0-v1.safetensors", "stage-0-v2.safetensors"])
    newest = found.entries()[-1]
    assert found.set_aside(newest).read_bytes() == b"c"
    assert [c.version for c in found.entries()] == [1]


# --- reads and writes at a place --------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    made = os.open(tmp_path / "part", os.O_RDWR | os.O_CREAT)
    yield made
    os.close(made)


def test_parts_are_written_in_any_order(file: int) -> None:
    write_at(file, b"behind", 6)
    assert os.fstat(file).st_size == 12
    write_at(file, b"before", 0)
    assert read_at(file, 100, 0) == b"beforebehind"


def test_a_hole_reads_as_zeros_and_the_end_as_less(file: int) -> None:
    write_at(file, b"word", 4)
    assert read_at(file, 4, 2) == b"\0\0wo"
    assert read_at(file, 9, 6) == b"rd"
    assert read_at(file, 9, 50) == b""


def test_a_disk_that_takes_and_gives_three_bytes_at_a_time(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: pwrite(f, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda f, count, at: pread(f, min(count, 3), at))
    write_at(file, b"0123456789", 2)
    assert read_at(file, 8, 2) == b"01234567"


def test_a_disk_that_takes_nothing_is_full(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="space") as failed:
        write_at(file, b"x", 0)
    assert failed.value.errno == errno.ENOSPC
