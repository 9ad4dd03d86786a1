"""Traces: joins and leaves read from a file, so that published preemption traces can be replayed.

CSV with the header ``time_s,peer,event,speed`` (speed may be missing): event is join, leave
(announced) or crash; speed is a multiple of the median machine's and counts at a join, 1 if empty.
Read strictly: an invalid line ends the reading with its number.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from client.errors import ExitCode, UserError
from client.lab.simulate.market import setting as world
from client.lab.simulate.market.nature import NEVER, Nature
from client.lab.simulate.market.setting import Setting

COLUMNS = ("time_s", "peer", "event", "speed")
MAX_LINES = 1_000_000
MAX_SPEED = 1e6


@dataclass(frozen=True, slots=True)
class _Session:
    joins_s: float
    speed: float
    leaves_s: float = NEVER
    crashed: bool = False


def read_trace(path: Path, setting: Setting) -> Nature:
    """Return the nature a trace describes; links are drawn as usual, seeded by the setting.

    A peer that joins again after it has left is a new volunteer.

    Raises:
        UserError: the file cannot be read, or a line is invalid.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            sessions = _sessions(lines, path)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}", exit_code=ExitCode.USAGE
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not CSV text: {error}", _FORM, ExitCode.USAGE) from error
    if not sessions:
        raise UserError(f"nobody joins in {path}", _FORM, ExitCode.USAGE)
    sessions.sort(key=lambda session: session.joins_s)
    founders = sum(session.joins_s <= world.ARRIVAL_S for session in sessions)
    random = np.random.default_rng([setting.seed, len(sessions), setting.stages])
    links = np.exp(world.SIGMA * random.standard_normal(len(sessions)))
    return Nature(
        setting=replace(setting, volunteers=max(founders, 1), churn=0.0),
        joins_s=np.array([session.joins_s for session in sessions]),
        leaves_s=np.array([session.leaves_s for session in sessions]),
        crashes=np.array([session.crashed for session in sessions]),
        speed=np.array([session.speed for session in sessions]),
        bytes_per_s=world.MEDIAN_BYTES_PER_S * links,
    )


_FORM = "expected lines such as 12.5,peer-7,join,1.3 under the header time_s,peer,event,speed"


def _sessions(lines: Iterable[str], path: Path) -> list[_Session]:
    rows = csv.reader(lines, strict=True)
    header = tuple(next(rows, ()))
    if header not in (COLUMNS, COLUMNS[:3]):
        raise _wrong(path, 1, f"the header is {','.join(header)[:80]!r}")
    done: list[_Session] = []
    there: dict[str, _Session] = {}
    last_s = 0.0
    for number, row in enumerate(rows, start=2):
        if number > MAX_LINES:
            raise _wrong(path, number, f"more than {MAX_LINES} lines")
        if len(row) != len(header):
            raise _wrong(path, number, f"{len(row)} fields instead of {len(header)}")
        at_s = _number(path, number, "time_s", row[0], least=last_s)
        last_s = at_s
        _apply(path, number, at_s, row, there, done)
    return done + list(there.values())


def _apply(
    path: Path,
    number: int,
    at_s: float,
    row: list[str],
    there: dict[str, _Session],
    done: list[_Session],
) -> None:
    """Apply one line."""
    peer, event = row[1], row[2]
    if not peer:
        raise _wrong(path, number, "the peer has no name")
    if event not in ("join", "leave", "crash"):
        raise _wrong(path, number, f"unknown event {event[:40]!r}")
    if (event == "join") == (peer in there):
        state = "is there already" if event == "join" else "is not there"
        raise _wrong(path, number, f"{peer[:40]!r} {state}")
    if event == "join":
        text = row[3] if len(row) > 3 else ""
        speed = _number(path, number, "speed", text, most=MAX_SPEED) if text else 1.0
        there[peer] = _Session(at_s, speed)
    else:
        session = there.pop(peer)
        done.append(replace(session, leaves_s=at_s, crashed=event == "crash"))


def _number(
    path: Path, line: int, name: str, text: str, *, least: float = 0.0, most: float = math.inf
) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _wrong(path, line, f"{name} is {text[:40]!r}, not a number") from None
    if not math.isfinite(value) or not least <= value <= most:
        limit = f"at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise _wrong(path, line, f"{name} is {text[:40]}, must be {limit}")
    return value


def _wrong(path: Path, line: int, what: str) -> UserError:
    return UserError(f"{path}, line {line}: {what}", _FORM, ExitCode.USAGE)
