"""The history of sessions: the expectation, and its survival of any end of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.store.records import MAX_SESSIONS
from client.store.sessions import (
    FILE_NAME,
    PRIOR_S,
    SessionHistory,
    expected_rest_s,
)


@pytest.mark.parametrize(
    ("past", "length_s", "expected"),
    [
        ([], 0, PRIOR_S),
        ([600], 0, (PRIOR_S + 600) / 2),
        ([600] * 9, 0, (PRIOR_S + 9 * 600) / 10),
        ([600, 7200], 3600, (PRIOR_S + 3600) / 2),
        ([600], 601, PRIOR_S),
    ],
)
def test_mean_rest_of_those_that_lasted_as_long(
    past: list[int], length_s: float, expected: float
) -> None:
    assert expected_rest_s(past, length_s) == expected


@given(st.lists(st.integers(0, 10**9), max_size=64), st.floats(0, 1e9), st.floats(-10, 1e6))
def test_never_negative_and_never_beyond_the_owners_limit(
    past: list[int], length_s: float, limit_s: float
) -> None:
    assert expected_rest_s(past, length_s) >= 0
    assert 0 <= expected_rest_s(past, length_s, limit_s) <= max(0.0, limit_s)


def test_a_session_counts_when_the_next_one_begins(tmp_path: Path) -> None:
    first = SessionHistory(tmp_path)
    assert first.past == ()
    for length_s in (0.0, 60.0, 120.9):
        first.beat(length_s)
    second = SessionHistory(tmp_path)
    assert second.past == (120,)
    second.beat(3.0)  # an attempt, no session
    assert SessionHistory(tmp_path).past == (120,)


def test_the_history_is_bounded(tmp_path: Path) -> None:
    for n in range(MAX_SESSIONS + 20):
        SessionHistory(tmp_path).beat(100 + n)
    history = SessionHistory(tmp_path)
    assert len(history.past) == MAX_SESSIONS
    assert history.past[-1] == 100 + MAX_SESSIONS + 19


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\xfe", b'{"past":[-1]}', b'{"past":[1e30]}', b'{"past":"x"}', b"[1]" * 9999],
)
def test_a_damaged_history_is_an_empty_one(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    history = SessionHistory(tmp_path)
    assert history.past == ()
    history.beat(50)
    assert SessionHistory(tmp_path).past == (50,)


BEATING = """
import sys
from pathlib import Path
from client.store.sessions import SessionHistory
history = SessionHistory(Path(sys.argv[1]))
length = 1000
while True:
    length += 1
    history.beat(length)
    print(length, flush=True)
"""


def test_a_killed_process_leaves_its_last_beat(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BEATING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        for _ in range(5):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        told = [int(line) for line in process.stdout.read().split()]
    process.wait()
    (length,) = SessionHistory(tmp_path).past
    assert length >= 1005
    assert not told or length >= told[-1]
    msgspec.json.decode((tmp_path / FILE_NAME).read_bytes())
