"""Saving: a newcomer that must wait, and a disk that fails and then works again."""

from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import trio

from client.compute.process import RequestFailed, WorkerDied
from client.compute.requests import Failed, Save, Saved
from client.store.checkpoints import CheckpointFolder
from client.train.stage.saver import StateSaver
from client.train.transfer.blobs import Downloads, Shelf
from protocol.wire.messages import ChunkRequest
from tests.support.protocol_examples import peer
from tests.support.recording_ports import RecordingPorts

ASKER, ROOT = peer(1), b"r" * 32


class Writer:
    """A worker that writes when it is told to."""

    pid = 0

    def __init__(self) -> None:
        self.asked: list[Save] = []
        self.go = trio.Event()
        self.full = False

    def submit(self, request: Save) -> Any:
        self.asked.append(request)
        return self

    async def wait(self, within_s: float) -> tuple[Saved, list[bytes]]:
        with trio.move_on_after(within_s):
            await self.go.wait()
        if not self.go.is_set():
            raise WorkerDied(-9, ())
        if self.full:
            raise RequestFailed(Failed(kind="disk", message="No space left on device"))
        Path(self.asked[-1].path).touch()
        return Saved(hash=ROOT.hex(), data_start=0, digests=[b"d" * 32]), []


def saver_of(
    worker: Writer, folder: Path, ports: RecordingPorts, nursery: trio.Nursery
) -> StateSaver:
    context = Mock(engine=ports, snapshots=folder)
    ports.shelf, ports.downloads = Shelf(ports), Downloads(ports)  # type: ignore[attr-defined]
    context.checkpoints = CheckpointFolder(folder / "checkpoints")
    context.history.protected.return_value = ()
    seat = Mock(step=5, place=Mock(stage=0))
    return StateSaver(cast(Any, worker), seat, context, nursery)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_newcomer_is_told_if_it_is_not_written(tmp_path: Path, version: int) -> None:
    ports, worker = RecordingPorts(), Writer()
    async with trio.open_nursery() as nursery:
        saver = saver_of(worker, tmp_path, ports, nursery)
        saver.checkpoint(4)
        saver.snapshot(version)
        assert len(worker.asked) == 1
        await ports.shelf.request(ASKER, ChunkRequest(ROOT, None, 0, version))
        assert ports.payloads == ([b""] if version == 5 else [])
        worker.go.set()
        await saver.settled()
        await ports.shelf.request(ASKER, ChunkRequest(ROOT, None, 0, 4))
        assert ports.payloads[-1] == b"d" * 32


async def test_a_complaint_ends_with_the_next_version_that_is_saved(tmp_path: Path) -> None:
    ports, worker = RecordingPorts(), Writer()
    worker.go.set()
    async with trio.open_nursery() as nursery:
        saver = saver_of(worker, tmp_path, ports, nursery)
        for version, worker.full in ((5, True), (10, True), (15, False), (20, False)):
            saver.checkpoint(version)
            await saver.settled()
            assert bool(saver.problem) == worker.full
    complaint, _, over = ports.told()
    assert complaint.words.startswith("could not save version 5: disk: No space left")
    assert over.over == complaint.words


async def test_a_snapshot_that_fails_says_nothing_of_the_newest_checkpoint(tmp_path: Path) -> None:
    ports, worker = RecordingPorts(), Writer()
    worker.go.set()
    async with trio.open_nursery() as nursery:
        saver = saver_of(worker, tmp_path, ports, nursery)
        saver.checkpoint(5)
        await saver.settled()
        worker.full = True
        saver.snapshot(5)
        await saver.settled()
        assert (saver.problem, saver.saved_version) == ("", 5)
        await saver.final()
        assert saver.problem == ""


async def test_a_save_that_is_never_answered_does_not_keep_others_from_being_asked_for(
    tmp_path: Path,
) -> None:
    """The worker answers the next one that the disk has not taken this one."""
    worker = Writer()
    async with trio.open_nursery() as nursery:
        saver = saver_of(worker, tmp_path, RecordingPorts(), nursery)
        for version in (5, 10):
            saver.checkpoint(version)
            await saver.settled()
    assert [save.version for save in worker.asked] == [5, 10]
    assert saver.saved_version == -1


async def test_what_the_disk_refuses_beside_a_write_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports, worker, place = RecordingPorts(), Writer(), tmp_path / "checkpoints"
    worker.go.set()
    place.write_text("no folder")
    async with trio.open_nursery() as nursery:
        saver = saver_of(worker, tmp_path, ports, nursery)
        saver.checkpoint(5)
        assert (worker.asked, saver.problem) == ([], f"cannot make {place}: File exists")
        place.unlink()
        monkeypatch.setattr(CheckpointFolder, "retain", Mock(side_effect=OSError("busy")))
        saver.checkpoint(6)
        await saver.settled()
        assert (saver.saved_version, saver.problem) == (6, "")
    refused, over, kept = ports.told()
    assert (refused.level, over.over) == ("error", refused.words)
    assert (kept.level, kept.words) == ("warning", "old checkpoints cannot be removed: busy")
