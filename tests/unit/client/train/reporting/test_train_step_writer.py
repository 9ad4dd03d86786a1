"""Steps are written beside training: it never waits, and an error is told once."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from client.events import LogLine, StageClosed, StepCommitted
from client.store.step_log import StepLog, StepRecord
from client.train.reporting.step_writer import MOST_WAITING, StepWriter
from protocol.effects import Explain


class Disk(StepLog):
    """Remembers what it is given; full or stuck as told."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.written: list[StepRecord] = []
        self.tries = 0
        self.full = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def append(self, records: Sequence[StepRecord]) -> None:
        self.goes_on.wait(10)
        self.tries += 1
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.written += records


def writer(disk: StepLog, told: list[Explain]) -> StepWriter:
    return StepWriter(disk, "ab" * 6, lambda: 0.0, lambda: [2, 1], told.append)


def committed(step: int, loss: float = 2.5) -> StepCommitted:
    return StepCommitted(words="", step=step, loss=loss, tokens=8 * step)


def closed(stage: int, version: int, norm: float) -> StageClosed:
    return StageClosed(
        words="",
        stage=stage,
        version=version,
        hash="",
        counted=1,
        attempt=1,
        era=0,
        grad_norm=norm,
    )


async def until(disk: Disk, tries: int) -> None:
    """Wait in real time: the disk is a thread."""
    with trio.fail_after(10):
        while disk.tries < tries:
            await trio.sleep(0.001)


async def test_a_step_is_written_with_what_is_known_of_it(nursery: trio.Nursery) -> None:
    disk = Disk()
    steps = writer(disk, [])
    nursery.start_soon(steps.run)
    for event in (closed(0, 7, 0.5), closed(1, 8, 0.25), closed(2, 8, float("inf"))):
        steps.hear(event)
    steps.hear(LogLine(words="something else"))
    steps.hear(committed(7))
    await until(disk, 1)
    (record,) = disk.written
    assert (record.step, record.loss, record.tokens) == (7, 2.5, 56)
    assert record.tokens_per_s is None
    assert record.members == [2, 1]
    assert record.grad_norm == {"1": 0.25}, "stage 0 has not closed the step, stage 2 has no norm"


async def test_a_full_disk_is_told_of_once_and_nothing_is_lost(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, told = Disk(), list[Explain]()
    disk.full = True
    steps = writer(disk, told)
    quick = "client.train.reporting.step_writer.AGAIN_S"
    monkeypatch.setattr(quick, 0.001)
    nursery.start_soon(steps.run)
    steps.hear(committed(0))
    await until(disk, 3)
    steps.hear(committed(1))
    await until(disk, 6)
    assert [one.level for one in told] == ["warning"]
    assert "/nowhere/metrics.jsonl: No space left on device; training goes on" in told[0].words
    disk.full = False
    with trio.fail_after(10):
        while len(told) < 2:
            await trio.sleep(0.001)
    assert [record.step for record in disk.written] == [0, 1]
    assert told[1].words == "/nowhere/metrics.jsonl is written again"


async def test_training_never_waits_for_a_disk_that_hangs(nursery: trio.Nursery) -> None:
    disk = Disk()
    disk.goes_on.clear()
    steps = writer(disk, [])
    nursery.start_soon(steps.run)
    for step in range(2 * MOST_WAITING):
        steps.hear(committed(step))
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(5):
        nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()


async def test_the_last_steps_are_written_at_the_end() -> None:
    disk = Disk()
    steps = writer(disk, [])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(steps.run)
        await trio.testing.wait_all_tasks_blocked()
        steps.hear(committed(0))
        nursery.cancel_scope.cancel()
    assert [record.step for record in disk.written] == [0]


async def test_a_loss_that_is_no_number_is_left_out(nursery: trio.Nursery) -> None:
    disk = Disk()
    steps = writer(disk, [])
    nursery.start_soon(steps.run)
    steps.hear(committed(0, float("nan")))
    steps.hear(committed(1))
    await until(disk, 1)
    assert [record.step for record in disk.written] == [1]


async def test_a_missing_folder_is_made_and_a_file_in_its_place_is_told_of(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    told: list[Explain] = []
    (tmp_path / "file").write_text("")
    good = writer(StepLog(tmp_path / "a" / "b"), told)
    bad = writer(StepLog(tmp_path / "file"), told)
    for steps in (good, bad):
        nursery.start_soon(steps.run)
        steps.hear(committed(3))
    path = tmp_path / "a" / "b" / "metrics.jsonl"
    with trio.fail_after(10):
        while not told or not path.exists() or not path.read_bytes():
            await trio.sleep(0.001)
    assert msgspec.json.decode(path.read_bytes())["step"] == 3
    assert [one.level for one in told] == ["warning"]
