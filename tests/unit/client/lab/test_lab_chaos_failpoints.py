"""Failpoints: read strictly, met once, noted before they act, and nothing at all when off."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import faults
from client.errors import ConfigError
from client.lab.chaos.armed import arm
from client.lab.chaos.failpoints import (
    MAX_TEXT_BYTES,
    PHASES,
    VARIABLE,
    Failpoint,
    Failpoints,
    parse_failpoints,
)
from client.train.stage import failpoints
from protocol.pipeline.effects import ApplyTask, BackwardTask, ForwardTask, LossTask, ReduceTask
from protocol.wire.messages import Forward, Message, Reduced, Segment

WORKER = 1


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.active = None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("forward@12=kill", (Failpoint("forward", 12, None, "kill"),)),
        ("averaging@*/1=stop:4", (Failpoint("averaging", None, 1, "stop", 4.0),)),
        (
            "backward@3=corrupt;checkpoint@2/0=nospace\nrecovery@*=kill-worker",
            (
                Failpoint("backward", 3, None, "corrupt"),
                Failpoint("checkpoint", 2, 0, "nospace"),
                Failpoint("recovery", None, None, "kill-worker"),
            ),
        ),
    ],
)
def test_what_is_written_is_what_is_read(text: str, found: tuple[Failpoint, ...]) -> None:
    assert parse_failpoints(text) == found
    assert parse_failpoints(";".join(map(str, found))) == found


@pytest.mark.parametrize(
    "text",
    [
        "forward",
        "sideways@1=kill",
        "forward@1=explode",
        "forward@-1=kill",
        "forward@1/x=kill",
        "forward@1=kill,backward@2=kill",
        "x" * (MAX_TEXT_BYTES + 1),
    ],
)
def test_anything_else_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_failpoints(text)
    assert caught.value.next_step


def damages(armed: Failpoints, phase: faults.Phase, step: int, stage: int) -> bool:
    return armed.sent(b"xyz", phase, step, stage) != b"xyz"


def test_each_acts_once_at_its_moment_and_is_noted_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    armed = Failpoints("forward@3/1=corrupt", log)
    assert not damages(armed, "forward", 2, 1)
    assert not damages(armed, "forward", 3, 0)
    assert not damages(armed, "backward", 3, 1)
    before = time.time()
    assert damages(armed, "forward", 3, 1)
    assert not damages(armed, "forward", 3, 1)
    (line,) = log.read_text().splitlines()
    record = json.loads(line)
    assert before <= record["time"] <= time.time()
    assert record["pid"] == os.getpid()
    assert (record["step"], record["stage"]) == (3, 1)
    assert record["failpoint"] == "forward@3/1=corrupt"


def test_nothing_is_armed_in_a_users_volunteer() -> None:
    assert faults.active is None
    payload = b"x" * 100
    assert failpoints.before_send(_forward(1), payload, 0, WORKER) is payload


def test_a_payload_is_damaged_on_its_way_out() -> None:
    arm({VARIABLE: "forward@1=corrupt;averaging@2=corrupt"})
    payload = bytes(100)
    assert failpoints.before_send(_forward(0), payload, 0, WORKER) == payload
    damaged = failpoints.before_send(_forward(1), payload, 0, WORKER)
    assert (len(damaged), damaged != payload) == (len(payload), True)
    assert failpoints.before_send(_forward(1), payload, 0, WORKER) == payload
    reduced = Reduced(0, 2, 1, 0, 1.0)
    assert failpoints.before_send(reduced, payload, 0, WORKER) == payload
    assert failpoints.before_send(Segment(0, 2, 1, 0), payload, 0, WORKER) != payload


def _forward(step: int) -> Message:
    return Forward(1, step, step, 1, 0, False)


@pytest.mark.parametrize(
    ("task", "first", "phase"),
    [
        (ForwardTask(5, 0), False, None),  # its moment is when what it yields goes out
        (LossTask(5, 0), False, "forward"),
        (BackwardTask(5, 0), True, "backward"),
        (BackwardTask(5, 0), False, None),
        (ReduceTask(5, 1, 0, (), ()), False, "averaging"),
        (ApplyTask(5, 1, (), (), ()), False, "before-optimizer"),
    ],
)
def test_tasks_have_their_moments(
    monkeypatch: pytest.MonkeyPatch, task: object, first: bool, phase: str | None
) -> None:
    hit: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: hit.append(pid))
    for other in PHASES:
        arm({VARIABLE: f"{other}@5=kill-worker"})
        failpoints.before_task(task, stage=0, first=first, worker=WORKER)  # type: ignore[arg-type]
        assert hit == ([WORKER] if other == phase else [])
        hit.clear()


@pytest.mark.parametrize("name", [".stage-1-v7.safetensors.tmp", "snapshot-1-v7.safetensors"])
def test_the_disk_is_full_for_one_file(name: str) -> None:
    armed = Failpoints("checkpoint@7/1=nospace", None)
    armed.write(".stage-0-v7.safetensors.tmp")
    armed.write("other")
    with pytest.raises(OSError, match="No space left") as caught:
        armed.write(name)
    assert caught.value.errno == errno.ENOSPC
    armed.write(name)
