"""An unfinished file: chunks in any order, holes, and a disk that takes little at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.train.transfer.partial_file import PartialFile


@pytest.fixture
def file(tmp_path: Path) -> Iterator[PartialFile]:
    made = PartialFile(tmp_path / "part")
    yield made
    made.close()


def test_the_next_process_goes_on_with_what_was_written(tmp_path: Path) -> None:
    first = PartialFile(tmp_path / "part")
    first.write(6, b"behind")
    assert first.length == 12
    first.close()
    second = PartialFile(tmp_path / "part")
    second.write(0, b"before")
    assert second.read(0, 100) == b"beforebehind"
    second.finish(9)
    assert second.length == 9
    second.close()
    with pytest.raises(OSError, match="descriptor"):
        second.read(0, 1)


def test_a_hole_reads_as_zeros_and_the_end_as_less(file: PartialFile) -> None:
    file.write(4, b"word")
    assert file.read(2, 4) == b"\0\0wo"
    assert file.read(6, 9) == b"rd"
    assert file.read(50, 9) == b""


def test_a_disk_that_takes_and_gives_three_bytes_at_a_time(
    file: PartialFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: pwrite(f, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda f, count, at: pread(f, min(count, 3), at))
    file.write(2, b"0123456789")
    assert file.read(2, 8) == b"01234567"


def test_a_disk_that_takes_nothing_is_full(
    file: PartialFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="space") as failed:
        file.write(0, b"x")
    assert failed.value.errno == errno.ENOSPC
