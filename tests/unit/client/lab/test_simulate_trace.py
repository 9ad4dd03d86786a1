"""Traces are read strictly: their events are replayed, and invalid lines are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.errors import ExitCode, UserError
from client.lab.simulate.market.setting import Setting
from client.lab.simulate.market.trace import read_trace

EXAMPLE = Path(__file__).parent / "traces" / "example.csv"
SETTING = Setting(volunteers=1, stages=2)


def test_sessions_speeds_and_crashes_are_those_of_the_file() -> None:
    nature = read_trace(EXAMPLE, SETTING)
    assert nature.joins_s.tolist() == [0, 3.5, 4, 10, 2700]
    assert nature.leaves_s.tolist() == [float("inf"), 2400, 1800, 5000, float("inf")]
    assert nature.crashes.tolist() == [False, False, True, True, False]
    assert nature.speed.tolist() == [1.5, 0.8, 1, 4, 1]


def test_founders_are_counted_and_links_are_seeded() -> None:
    one, other = (read_trace(EXAMPLE, SETTING) for _ in range(2))
    assert one.setting.volunteers == 4
    assert one.bytes_per_s.tolist() == other.bytes_per_s.tolist()


def test_speeds_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,peer,event\n0,a,join\n5,a,leave\n")
    assert read_trace(path, SETTING).speed.tolist() == [1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x,b,join,1", "line 3: time_s is 'x', not a number"),
        ("-1,b,join,1", "line 3: time_s is -1, must be at least 5"),
        ("4,b,join,1", "line 3: time_s is 4, must be at least 5"),
        ("nan,b,join,1", "line 3: time_s is nan"),
        ("1e999,b,join,1", "line 3: time_s is 1e999"),
        ("6,b,join,-2", "line 3: speed is -2"),
        ("6,b,join,1e30", "line 3: speed is 1e30"),
        ("6,b,join,fast", "line 3: speed is 'fast', not a number"),
        ("6,b,arrive,1", "line 3: unknown event 'arrive'"),
        ("6,b,leave,", "line 3: 'b' is not there"),
        ("6,a,join,1", "line 3: 'a' is there already"),
        ("6,,join,1", "line 3: the peer has no name"),
        ("6,b,join", "line 3: 3 fields instead of 4"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"time_s,peer,event,speed\n5,a,join,1\n{line}\n")
    with pytest.raises(UserError) as raised:
        read_trace(path, SETTING)
    assert words in raised.value.message
    assert raised.value.next_step
    assert raised.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the header is ''"),
        (b"a,b\n", "the header is 'a,b'"),
        (b"time_s,peer,event\n", "nobody joins"),
        (b"\xff\xfe\x00", "is not CSV text"),
        (b'time_s,peer,event\n0,"a,join\n', "is not CSV text"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_trace(path, SETTING)
