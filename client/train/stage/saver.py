"""Writing state: snapshots for newcomers and periodic checkpoints, one at a time.

A save names the version that the worker holds *now*: it is submitted at once, in order with the
round's tasks, and the worker copies its buffers before it applies the next. While one is being
written a snapshot is skipped (the newcomer asks again) and a checkpoint is written afterwards, if
the worker still holds that version by then.
"""

from pathlib import Path
from typing import Literal

import trio

from client.compute.process import Call, RequestFailed, Worker, WorkerDied
from client.compute.requests import Failed, Save, Saved
from client.train.stage.stage_context import StageContext
from client.train.transfer.blobs import Filed
from client.train.transfer.state_size import data_bytes
from client.train.workers.patience import state_s
from protocol.effects import Explain
from protocol.seat.seat import Seat

FINAL_TRIES = 10


class StateSaver:
    """Saves the state of one worker's stage and offers the files on the shelf; writes are tasks of
    ``nursery``."""

    def __init__(
        self, worker: Worker, seat: Seat, context: StageContext, nursery: trio.Nursery
    ) -> None:
        self._worker, self._seat, self._nursery = worker, seat, nursery
        self._stage = seat.place.stage
        self._checkpoints = context.checkpoints
        self._snapshots, self._shelf = context.snapshots, context.engine.shelf
        self._ports, self._history = context.engine, context.history
        self._state = context.engine.downloads.state
        self._busy, self._complaint = False, ""
        self._writing = -1  # version that is being written, while one is
        self._idle = trio.Event()
        self._next = -1  # version of the checkpoint to write after the present one
        self.saved_version = -1
        """Newest version in a durable checkpoint of this run."""
        self.problem = ""
        """Why the newest durable checkpoint could not be written; empty: it was."""

    def snapshot(self, version: int) -> None:
        """Write the current version for newcomers; the file is removed when it is no longer
        useful. While another version is being written they are told to ask again."""
        if self._busy and version != self._writing:
            self._shelf.skip(self._stage, version)
        path = self._snapshots / f"snapshot-{self._stage}-v{version}.safetensors"
        self._save(version, path, durable=False)

    def checkpoint(self, version: int) -> None:
        """Write the current version durably and forget checkpoints beyond the retention."""
        self.problem = ""
        self._save(version, self._checkpoints.path(self._stage, version), durable=True)

    async def final(self) -> None:
        """Write a last checkpoint and wait until it is on disk.

        Training goes on meanwhile: the worker may have moved on when it gets to the save, so the
        version is asked for again each time. If the disk does not take it, ``problem`` says why.
        """
        for _ in range(FINAL_TRIES):
            await self.settled()
            wanted = self._seat.step
            if self.saved_version < wanted:
                self.checkpoint(wanted)
                await self.settled()
            if self.saved_version >= wanted or self.problem:
                return

    async def settled(self) -> None:
        """Wait until nothing is being written."""
        while self._busy:
            await self._idle.wait()

    def _save(self, version: int, path: Path, *, durable: bool) -> None:
        if self._busy:
            self._next = max(self._next, version) if durable else self._next
            return
        request = Save(version=version, path=str(path), durable=durable)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            submitted = self._worker.submit(request)
        except WorkerDied:
            return
        except OSError as error:
            words = f"cannot make {path.parent}: {error.strerror}"
            failure = RequestFailed(Failed(kind="disk", message=words))
            self._explain_failure(version, failure, durable=durable)
            return
        self._busy, self._idle, self._writing = True, trio.Event(), version

        self._nursery.start_soon(self._finish, submitted, version, path, durable)

    async def _finish(
        self, submitted: Call[Saved], version: int, path: Path, durable: bool
    ) -> None:
        try:
            within_s = state_s(data_bytes(self._ports.manifest, self._stage))
            reply, _ = await submitted.wait(within_s)
        except RequestFailed as failure:
            self._explain_failure(version, failure, durable=durable)
        except WorkerDied:
            pass  # the engine is told by the seat; of a disk that hangs by the next save
        else:
            state = self._state(self._stage, version, bytes.fromhex(reply.hash))
            filed = Filed(state, b"".join(reply.digests), reply.data_start)
            self._shelf.put(filed, path, temporary=not durable)
            self._end_complaint(version)
            if durable:
                self._retain(version)
        finally:
            self._busy = False
            self._idle.set()
            if (version := self._next) >= 0:
                self._next = -1
                self.checkpoint(version)

    def _retain(self, version: int) -> None:
        self.saved_version = max(self.saved_version, version)
        self._history.stored(self._stage, version)
        try:
            self._checkpoints.retain(self._history.protected(), stage=self._stage)
        except OSError as error:
            words = f"old checkpoints cannot be removed: {error}"
            self._ports.perform(Explain("transfer", words, "warning"))

    def _explain_failure(self, version: int, failure: RequestFailed, *, durable: bool) -> None:
        if failure.kind == "stale":
            self._ports.perform(Explain("transfer", f"a newer version replaced {version}", "debug"))
            return
        if durable:
            self.problem = failure.message
        words = (
            f"could not save version {version}: {failure}; earlier checkpoints are intact and "
            "training goes on"
        )
        if failure.kind == "disk":
            words += f"; make room, or make it writable: {self._checkpoints.folder}"
        level: Literal["debug", "error"] = "debug" if self._complaint else "error"
        self._complaint = self._complaint or words
        self._ports.perform(Explain("transfer", words, level))

    def _end_complaint(self, version: int) -> None:
        if self._complaint:
            words = f"version {version} is saved: the disk takes checkpoints again"
            self._ports.perform(Explain("transfer", words, over=self._complaint))
            self._complaint = ""
