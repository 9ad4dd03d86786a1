"""Volunteers of one machine see each other while they run, and believe each other little."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from client.limits.local_volunteers import MAX_NOTICES, PREFIX, SIZE_BYTES, Board, Notice

ANOTHER = """
import os, sys
from pathlib import Path
from client.limits.local_volunteers import Board, Notice
board = Board(Path(sys.argv[1]))
board.post(Notice(pid=os.getpid(), cpus="3", threads=2, computing=True))
print("posted", flush=True)
sys.stdin.readline()
board.post(Notice(pid=os.getpid(), cpus="f", computing=False))
print("changed", flush=True)
sys.stdin.readline()
board.withdraw()
print("withdrawn", flush=True)
sys.stdin.readline()
"""


@contextmanager
def another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a notice in the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", ANOTHER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "posted\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def _go_on(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_volunteers_see_each_other_as_they_are_now(tmp_path: Path) -> None:
    board = Board(tmp_path)
    assert board.others() == []
    with another(tmp_path) as process:
        [seen] = board.others()
        assert seen.user == os.geteuid()
        assert seen.notice == Notice(pid=process.pid, cpus="3", threads=2, computing=True)
        assert seen.notice.mask == 3
        assert _go_on(process) == "changed\n"
        assert board.others()[0].notice == Notice(pid=process.pid, cpus="f")
        assert _go_on(process) == "withdrawn\n"
        assert board.others() == []


def test_a_killed_volunteer_is_gone_at_once_and_its_file_too(tmp_path: Path) -> None:
    board = Board(tmp_path)
    with another(tmp_path) as process:
        assert len(board.others()) == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert board.others() == []
        assert list(tmp_path.iterdir()) == []


def test_our_own_notice_is_nobody_else(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.post(Notice(pid=os.getpid(), cpus="1"))
    assert board.others() == []
    [file] = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644
    assert file.stat().st_size == SIZE_BYTES
    board.withdraw()
    board.withdraw()
    assert list(tmp_path.iterdir()) == []


def _lay(folder: Path, name: str, content: bytes) -> int:
    """A locked file as somebody who means ill would make it; returns its descriptor."""
    descriptor = os.open(folder / f"{PREFIX}{name}", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(descriptor, content, 0)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{" * SIZE_BYTES,
        b"\xff" * SIZE_BYTES,
        b'{"pid": -1, "cpus": "1"}'.ljust(SIZE_BYTES),
        b'{"pid": 1, "cpus": "zz"}'.ljust(SIZE_BYTES),
        b'{"pid": 4194304999, "cpus": "1"}'.ljust(SIZE_BYTES),
        b'{"pid": 2147483647, "cpus": "1"}'.ljust(SIZE_BYTES),  # no such process
        b'{"pid": 1, "cpus": "1"}'.ljust(SIZE_BYTES * 1000),
    ],
)
def test_what_cannot_be_believed_is_left_out(tmp_path: Path, content: bytes) -> None:
    descriptor = _lay(tmp_path, "x", content)
    try:
        assert Board(tmp_path).others() == []
    finally:
        os.close(descriptor)


def test_a_notice_that_names_somebody_elses_process_is_left_out(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root's notice may name a process of root")
    descriptor = _lay(tmp_path, "x", b'{"pid": 1, "cpus": "1"}'.ljust(SIZE_BYTES))
    try:
        assert Board(tmp_path).others() == []
    finally:
        os.close(descriptor)


def test_pipes_links_and_folders_are_left_out_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{PREFIX}pipe")
    (tmp_path / f"{PREFIX}link").symlink_to("/etc/passwd")
    (tmp_path / f"{PREFIX}folder").mkdir()
    assert Board(tmp_path).others() == []


def test_one_process_counts_once_and_the_number_is_bounded(tmp_path: Path) -> None:
    with another(tmp_path) as process:
        content = msgspec.json.encode(Notice(pid=process.pid, cpus="1")).ljust(SIZE_BYTES)
        descriptors = [_lay(tmp_path, str(i), content) for i in range(MAX_NOTICES + 50)]
        try:
            assert len(Board(tmp_path).others()) == 1
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def test_a_folder_that_cannot_be_used_has_nobody(tmp_path: Path) -> None:
    board = Board(tmp_path / "missing")
    assert board.others() == []
    with pytest.raises(OSError, match="missing"):
        board.post(Notice(pid=os.getpid(), cpus="1"))
    board.withdraw()
