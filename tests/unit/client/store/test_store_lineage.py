"""Whom a volunteer met at the beginning of a lineage is known to its next process."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.store.lineage import BEGINNINGS_NAME, SET_ASIDE, load_beginnings, save_beginnings
from protocol.ids import peer_id_from_key
from protocol.rounds.beginnings import Beginnings, Met

PEERS = tuple(peer_id_from_key(bytes([n]) * 32) for n in range(3))


def test_the_next_process_knows_whom_this_one_met(tmp_path: Path) -> None:
    beginnings = Beginnings()
    assert load_beginnings(tmp_path)[0].kept == ()
    for stage, era in ((0, 3), (1, 3), (1, 4)):
        beginnings.keep(Met(stage, era, PEERS[:2], PEERS))
        save_beginnings(tmp_path, beginnings)
    found, warning = load_beginnings(tmp_path)
    assert not warning
    assert found.kept == beginnings.kept
    assert found.met(1, 4) == Met(1, 4, PEERS[:2], PEERS)


@pytest.mark.parametrize("content", [b"", b"\x91\x91\x01", b"\xff" * 64, b"\x90" * 2_000_000])
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / BEGINNINGS_NAME).write_bytes(content)
    found, warning = load_beginnings(tmp_path)
    assert found.kept == ()
    assert BEGINNINGS_NAME in warning
    assert (tmp_path / (BEGINNINGS_NAME + SET_ASIDE)).exists()
