"""The key of a home's encrypted files opens with its passphrase only."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from client.errors import UserError
from client.store.rest_key import (
    FILE_NAME,
    KeyFile,
    WrongPassphrase,
    has_key,
    new_key,
    open_key,
    save_key,
)

CHEAP = {"operations": 1, "memory_bytes": 8192}


def test_the_passphrase_opens_the_key_and_can_be_changed(tmp_path: Path) -> None:
    key = new_key()
    assert not has_key(tmp_path)
    save_key(tmp_path, key, b"first", **CHEAP)
    assert has_key(tmp_path)
    assert open_key(tmp_path, b"first") == key
    save_key(tmp_path, key, b"second", **CHEAP)
    assert open_key(tmp_path, b"second") == key
    with pytest.raises(WrongPassphrase):
        open_key(tmp_path, b"first")


def test_the_file_is_private_and_does_not_contain_the_key(tmp_path: Path) -> None:
    key = new_key()
    save_key(tmp_path, key, b"x", **CHEAP)
    path = tmp_path / FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    assert key not in msgspec.json.decode(path.read_bytes(), type=KeyFile).box


def test_a_wrong_passphrase_changes_nothing(tmp_path: Path) -> None:
    save_key(tmp_path, new_key(), b"x", **CHEAP)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(WrongPassphrase, match="passphrase is wrong"):
        open_key(tmp_path, b"y")
    assert (tmp_path / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff" * 2000, b'{"schema_version":1,"salt":"AA==","operations":1}'],
)
def test_a_damaged_key_file_is_an_error_with_advice(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(UserError, match="damaged") as raised:
        open_key(tmp_path, b"x")
    assert "backup" in raised.value.next_step


def test_a_foreign_key_file_cannot_take_all_memory(tmp_path: Path) -> None:
    save_key(tmp_path, new_key(), b"x", **CHEAP)
    path = tmp_path / FILE_NAME
    found = msgspec.json.decode(path.read_bytes())
    for field, value in (("memory_bytes", 1 << 50), ("operations", 1 << 30)):
        path.write_bytes(msgspec.json.encode({**found, field: value}))
        with pytest.raises(UserError, match="damaged"):
            open_key(tmp_path, b"x")
