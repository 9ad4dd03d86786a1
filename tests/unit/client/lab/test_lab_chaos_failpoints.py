"""Failpoints: read strictly, met once, noted before they act, and nothing at all when off."""

import errno
import json
import os
import time
from pathlib import Path

import pytest

from client.compute import saving
from client.compute.errors import DiskError
from client.errors import ConfigError
from client.lab.chaos import moments
from client.lab.chaos.armed import arm_writer, failpoints_of
from client.lab.chaos.failpoints import (
    LOG_VARIABLE,
    MAX_TEXT_BYTES,
    VARIABLE,
    Failpoint,
    Failpoints,
    Phase,
    parse_failpoints,
)
from client.train.stage import held_stage, seat_driver
from client.train.stage.saver import StateSaver
from client.train.stage.seat_driver import SeatDriver
from client.train.stage.stage_acquisition import StageAcquisition
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    ForwardTask,
    LossTask,
    ReduceTask,
    Task,
)
from protocol.wire.messages import Forward, Message, Reduced, Segment

WORKER = 1


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


def damages(armed: Failpoints, phase: Phase, step: int, stage: int) -> bool:
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
    assert held_stage.SeatDriver is SeatDriver
    assert held_stage.StageAcquisition is StageAcquisition
    assert seat_driver.StateSaver is StateSaver


def test_what_is_armed_stands_in_the_place_of_what_a_seat_does() -> None:
    armed = (moments.ArmedSeat, moments.ArmedAcquisition, moments.ArmedSaver)
    for each, base in zip(armed, (SeatDriver, StageAcquisition, StateSaver), strict=True):
        methods = {name for name, value in vars(each).items() if callable(value)} - {"_reach"}
        assert methods <= vars(base).keys()


def test_a_file_that_meets_a_full_disk_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_write", saving._write)
    arm_writer(Failpoints("checkpoint@7/1=nospace", None))
    path = tmp_path / "stage-1-v7.safetensors"
    with pytest.raises(DiskError, match="No space left"):
        saving.write_atomically(path, [memoryview(b"x")], durable=True)
    assert list(tmp_path.iterdir()) == []
    saving.write_atomically(path, [memoryview(b"x")], durable=True)
    assert path.read_bytes() == b"x"


def test_what_is_armed_comes_from_the_environment(tmp_path: Path) -> None:
    environ = {VARIABLE: "forward@3/1=corrupt", LOG_VARIABLE: str(tmp_path / "log")}
    assert damages(failpoints_of(environ), "forward", 3, 1)
    assert (tmp_path / "log").exists()
    with pytest.raises(ConfigError):
        failpoints_of({VARIABLE: "forward"})


def test_a_payload_is_damaged_on_its_way_out() -> None:
    armed = Failpoints("forward@1=corrupt;averaging@2=corrupt", None)
    payload = bytes(100)

    def sent(message: Message) -> bytes:
        return moments.leaving(armed, message, payload, 0, WORKER)

    assert sent(_forward(0)) == payload
    damaged = sent(_forward(1))
    assert (len(damaged), damaged != payload) == (len(payload), True)
    assert sent(_forward(1)) == payload
    assert sent(Reduced(0, 2, 1, 0, 1.0)) == payload
    assert sent(Segment(0, 2, 1, 0)) != payload


def _forward(step: int) -> Message:
    return Forward(1, step, step, 1, False)


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
def test_tasks_have_their_moments(task: Task, first: bool, phase: Phase | None) -> None:
    assert moments.moment_of_task(task, first=first) == phase


@pytest.mark.parametrize("name", [".stage-1-v7.safetensors.tmp", "snapshot-1-v7.safetensors"])
def test_the_disk_is_full_for_one_file(name: str) -> None:
    armed = Failpoints("checkpoint@7/1=nospace", None)
    armed.write(".stage-0-v7.safetensors.tmp")
    armed.write("other")
    with pytest.raises(OSError, match="No space left") as caught:
        armed.write(name)
    assert caught.value.errno == errno.ENOSPC
    armed.write(name)
