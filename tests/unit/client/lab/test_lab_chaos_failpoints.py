"""The failpoint: met once, noted before it acts, and nothing at all in a user's volunteer."""

import errno
import time
from pathlib import Path

import pytest

from client.compute import saving
from client.compute.errors import DiskError
from client.lab.chaos import moments
from client.lab.chaos.armed import arm_writer
from client.lab.chaos.failpoints import Failpoint, Phase, reached
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
from protocol.wire.messages import Backward, Forward, Message, Reduced, Segment

WORKER = 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "failpoint"


def set_to(file: Path, text: str) -> None:
    """As the harness does it."""
    (new := file.with_suffix(".new")).write_text(text)
    new.replace(file)


def sent(failpoint: Failpoint, message: Message, payload: bytes = bytes(100)) -> bytes:
    return moments.leaving(failpoint, message, payload, WORKER)


def test_it_acts_once_at_its_moment_is_noted_first_and_can_be_set_again(file: Path) -> None:
    failpoint = Failpoint(file)
    forward, backward = Forward(1, 3, 3, False), Backward(1, 3, 1)
    assert sent(failpoint, forward) == bytes(100), "there is no file yet"
    assert reached(file) is None
    set_to(file, "forward corrupt")
    assert sent(failpoint, backward) == bytes(100)
    assert reached(file) is None
    before = time.time()
    damaged = sent(failpoint, forward)
    assert (len(damaged), damaged != bytes(100)) == (100, True)
    assert sent(failpoint, forward) == bytes(100)
    at, step = reached(file) or (0.0, 0)
    assert before <= at <= time.time()
    assert step == 3
    set_to(file, "averaging corrupt")
    assert sent(failpoint, Reduced(0, 2, 1, 0, 1.0)) == bytes(100)
    assert sent(failpoint, Segment(0, 2, 1, 0)) != bytes(100)
    assert reached(file) is not None
    set_to(file, "")
    assert sent(failpoint, forward) == bytes(100)
    assert reached(file) is None


def test_nothing_is_armed_in_a_users_volunteer() -> None:
    assert held_stage.SeatDriver is SeatDriver
    assert held_stage.StageAcquisition is StageAcquisition
    assert seat_driver.StateSaver is StateSaver


def test_what_is_armed_stands_in_the_place_of_what_a_seat_does() -> None:
    armed = (moments.ArmedSeat, moments.ArmedAcquisition, moments.ArmedSaver)
    for each, base in zip(armed, (SeatDriver, StageAcquisition, StateSaver), strict=True):
        methods = {name for name, value in vars(each).items() if callable(value)} - {"_reach"}
        assert methods <= vars(base).keys()


def write_state(path: Path) -> None:
    with saving.written(path) as file:
        file.write(b"x")


def test_a_state_that_meets_a_full_disk_does_not_appear(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "written", saving.written)
    set_to(file, "checkpoint nospace")
    arm_writer(Failpoint(file))
    (folder := tmp_path / "states").mkdir()
    write_state(folder / "other")
    path = folder / "stage-1-v7.safetensors"
    with pytest.raises(DiskError, match="No space left"):
        write_state(path)
    assert [found.name for found in folder.iterdir()] == ["other"]
    write_state(path)
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("name", [".stage-1-v7.safetensors.tmp", "snapshot-1-v7.safetensors"])
def test_files_of_states_are_known_by_their_names(file: Path, name: str) -> None:
    set_to(file, "checkpoint nospace")
    with pytest.raises(OSError, match="No space left") as caught:
        Failpoint(file).write(name)
    assert caught.value.errno == errno.ENOSPC


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
