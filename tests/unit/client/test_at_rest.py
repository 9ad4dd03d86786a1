"""Encrypted files: any place of them can be read, and whatever was changed is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import at_rest
from client.at_rest import CHUNK_BYTES, Damaged, Filling, Locked, open_read, read_bytes, writing

KEY = bytes(range(32))
SEALED_CHUNK = CHUNK_BYTES + at_rest.OVERHEAD_BYTES
HEADER = 64


@pytest.fixture(autouse=True)
def key() -> Iterator[None]:
    at_rest.use(KEY)
    yield
    at_rest.use(None)


def written(path: Path, data: bytes) -> Path:
    with path.open("wb") as file, writing(file) as out:
        for start in range(0, len(data), 700_001):
            out.write(memoryview(data)[start : start + 700_001])
    return path


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 << 20])
def test_what_is_written_is_read_and_does_not_lie_on_the_disk(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path = written(tmp_path / "x", data)
    assert read_bytes(path) == data
    assert at_rest.is_encrypted(path)
    assert size < 16 or data[:16] not in path.read_bytes()


@given(place=st.integers(0, 2 * CHUNK_BYTES + 9), count=st.integers(0, CHUNK_BYTES + 5))
def test_any_place_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, place: int, count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-place"
    data = bytes(i * i % 251 for i in range(1000)) * 2100
    if not path.exists():
        written(path, data)
    with open_read(path) as file:
        assert file.seek(0, 2) == len(data)
        file.seek(place)
        assert file.read(count) == data[place : place + count]


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"plain")
    assert read_bytes(tmp_path / "x") == b"plain"


def test_without_a_key_files_are_plain_and_encrypted_ones_are_locked(tmp_path: Path) -> None:
    sealed = written(tmp_path / "sealed", b"text")
    for other in (None, bytes(32)):
        at_rest.use(other)
        with pytest.raises(Locked):
            read_bytes(sealed)
    at_rest.use(None)
    assert written(tmp_path / "plain", b"text").read_bytes() == b"text"
    at_rest.use(KEY)
    assert read_bytes(sealed) == b"text"


@pytest.mark.parametrize(
    "place",
    [8 + 16 + 1, 8 + 8 + 16 + 2, 50, HEADER + 3, HEADER + 30, HEADER + SEALED_CHUNK + 100, -1],
    ids=["id", "size", "code", "nonce", "first chunk", "second chunk", "last byte"],
)
def test_a_changed_byte_is_noticed(tmp_path: Path, place: int) -> None:
    path = written(tmp_path / "x", bytes(3 * CHUNK_BYTES + 5))
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Damaged):
        read_bytes(path)


def test_a_shortened_lengthened_or_reordered_file_is_noticed(tmp_path: Path) -> None:
    raw = written(tmp_path / "x", bytes(3 * CHUNK_BYTES)).read_bytes()
    first, second = HEADER, HEADER + SEALED_CHUNK
    swapped = raw[:first] + raw[second : second + SEALED_CHUNK] + raw[first:second]
    for changed in (
        raw[:-1],
        raw[:-SEALED_CHUNK],
        raw[:HEADER],
        raw[:20],
        raw + b"x",
        swapped + raw[second + SEALED_CHUNK :],
    ):
        (tmp_path / "y").write_bytes(changed)
        with pytest.raises(Damaged):
            read_bytes(tmp_path / "y")


def test_a_chunk_of_another_file_is_noticed(tmp_path: Path) -> None:
    first = bytearray(written(tmp_path / "x", bytes(10)).read_bytes())
    second = written(tmp_path / "y", bytes(10)).read_bytes()
    first[HEADER:] = second[HEADER:]
    (tmp_path / "x").write_bytes(first)
    with pytest.raises(Damaged):
        read_bytes(tmp_path / "x")


def test_a_file_that_was_never_completed_is_damaged(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def broken() -> Iterator[bytes]:
        yield bytes(2 * CHUNK_BYTES)
        raise Interrupted

    with (tmp_path / "x").open("wb") as file, suppress(Interrupted), writing(file) as out:
        for piece in broken():
            out.write(piece)
    with pytest.raises(Damaged):
        read_bytes(tmp_path / "x")


# --- files that are filled in any order -------------------------------------------------------


@pytest.mark.parametrize("key", [KEY, None], ids=["encrypted", "plain"])
def test_a_file_is_filled_in_any_order_and_continued(tmp_path: Path, key: bytes | None) -> None:
    at_rest.use(key)
    data, path = os.urandom(4 * CHUNK_BYTES + 7), tmp_path / "x"
    file = Filling(path)
    assert file.empty
    file.write(4 * CHUNK_BYTES, data[4 * CHUNK_BYTES :])
    file.write(0, data[: 2 * CHUNK_BYTES])
    file.close()
    again = Filling(path)
    assert not again.empty
    assert again.read(0, 2 * CHUNK_BYTES) == data[: 2 * CHUNK_BYTES]
    assert again.read(2 * CHUNK_BYTES, CHUNK_BYTES).strip(b"\0") == b""
    assert again.read(4 * CHUNK_BYTES, 2 * CHUNK_BYTES) == data[4 * CHUNK_BYTES :]
    again.write(2 * CHUNK_BYTES, data[2 * CHUNK_BYTES : 4 * CHUNK_BYTES])
    again.finish(len(data))
    again.close()
    assert read_bytes(path) == data


def test_a_partial_file_of_the_other_kind_is_begun_again(tmp_path: Path) -> None:
    for first, then in ((KEY, None), (None, KEY), (KEY, bytes(32))):
        path = tmp_path / f"{first!r:.5}{then!r:.5}"
        at_rest.use(first)
        file = Filling(path)
        file.write(0, b"a" * 100)
        file.close()
        at_rest.use(then)
        again = Filling(path)
        assert again.empty
        again.close()


def test_pieces_are_encrypted_with_a_key_only() -> None:
    assert at_rest.unsealed(at_rest.sealed(b"tensor")) == b"tensor"
    assert b"tensor" not in at_rest.sealed(b"tensor")
    with pytest.raises(Damaged):
        at_rest.unsealed(at_rest.sealed(b"tensor")[:-1])
    with pytest.raises(Damaged):
        at_rest.unsealed(b"")
    at_rest.use(None)
    assert at_rest.sealed(b"tensor") == b"tensor"


def test_a_key_for_reading_only_writes_plain_files_and_is_not_handed_on(tmp_path: Path) -> None:
    sealed = written(tmp_path / "x", b"text")
    at_rest.use(KEY, writes=False)
    assert read_bytes(sealed) == b"text"
    assert written(tmp_path / "y", b"text").read_bytes() == b"text"
    assert not at_rest.key_to_hand_on()
