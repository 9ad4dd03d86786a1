"""A file whose parts are written in any order: holes, and a disk that takes little at a time."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.store.positioned import read_at, write_at


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
