"""Acquires a stage: finds the training data, opens the stage in the worker, downloads its state.

One object per attempt. Only files under their final names outlive it.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from client.compute.checkpoint import read_info
from client.compute.errors import CheckpointError
from client.compute.memory import Fit
from client.compute.process import RequestFailed, Worker
from client.compute.requests import Load, LoadStart, OpenStage, ReplyT, Request
from client.errors import UserError
from client.store.checkpoints import Checkpoint, CheckpointFolder
from client.train.stage.stage_context import StageContext
from client.train.transfer.blobs import IDLE_S, DiskFailed, DownloadFailed, filed, unlink
from client.train.transfer.leaf_supply import ASK_AGAIN_S
from client.train.transfer.state_size import data_bytes
from client.train.workers.patience import state_s
from protocol.effects import Explain
from protocol.held_stage.acquisition import Begin, Join, Wait, admission, way_in
from protocol.held_stage.machine import Phase
from protocol.ids import PeerId, short
from protocol.recovery.stored import Lineage
from protocol.transfer.blob import Blob
from protocol.wire.messages import Admit, JoinStage

ANSWER_S = 2 * ASK_AGAIN_S + 2.0
"""Seconds within which members with training data answer."""
LOOK_FOR_ANSWERS_S = 0.1
JOIN_RETRY_S = 1.0
JOIN_TIMEOUT_S = 600.0
SAVED_BYTES_PER_S = 20e6
"""At which a donor writes a snapshot at least: it copies, hashes and writes it beside its work, and
answers when it is complete."""
BEGIN_S, SLOW_BYTES_PER_S = 600.0, 1e6
"""For so long, and for as long as the state takes at that rate, it is fetched from those who name
it; then they may be doubted (``protocol/recovery/evidence.py``)."""
LOOK_S = 2.0
BEGIN: Final = "begin-"
"""Prefix of the file names of downloads for the start of a lineage."""


class DataMissing(UserError):
    """No member has the data that stage 0 needs; the volunteer can hold other stages."""


async def offer_data(context: StageContext) -> None:
    """Let others copy the leaves of the training data that are here, and their tokenizer."""
    context.engine.shelf.leaves = context.leaves
    if context.engine.manifest.data.tokenizer is None or not context.leaves.has_tokenizer():
        return
    path = context.leaves.tokenizer
    context.engine.shelf.put(await trio.to_thread.run_sync(filed, path), path, temporary=False)


async def offer_start(context: StageContext, stage: int) -> None:
    """Let others copy what a stage of an imported model begins with, if it is here."""
    path = context.starts[stage]
    with suppress(OSError):
        context.engine.shelf.put(await trio.to_thread.run_sync(filed, path), path, temporary=False)


class StageAcquisition:
    """One attempt to take ``stage`` with ``worker``.

    Args:
        waits: called with the ``Phase`` reached and, where that says too little, with what is
            waited for.
    """

    def __init__(
        self,
        context: StageContext,
        stage: int,
        worker: Worker,
        waits: Callable[..., None],
    ) -> None:
        self._context, self._engine = context, context.engine
        self.stage, self._worker, self._waits = stage, worker, waits
        self._admits, self._admitted = trio.open_memory_channel[tuple[PeerId, Admit]](4)
        self.admitted: tuple[PeerId, int] | None = None
        """Who has admitted us, and at which version."""
        self.knows_where = False
        """Whether the state of one lineage is being fetched."""

    # --- the steps ---------------------------------------------------------------------------

    async def open(self, fit: Fit) -> None:
        """Open the stage in the worker; ``fit`` says how it fits into memory.

        Raises:
            DataMissing: nobody has the training data.
            DownloadFailed: no member that has their tokenizer served it.
        """
        context, corpus = self._context, ""
        if self.stage == 0:
            corpus = await self._prepare_data()
        self._waits(Phase.OPENING)
        request = OpenStage(
            swarm=self._engine.swarm,
            peer=self._engine.me,
            manifest=self._engine.manifest,
            stage=self.stage,
            fit=fit,
            settings=context.settings,
            threads=context.capacity.threads,
            compile_folder=context.compiled,
            corpus=corpus,
        )
        if fit.offloaded_bytes:
            what = f"{fit.offloaded_bytes / 2**20:.0f} MiB of moments and gradient sums"
            words = f"stage {self.stage} keeps {what} in the GPU's host"
            self._engine.perform(Explain("pipeline", words))
        opened = await self._ask(request)
        if opened.words:
            words = f"stage {self.stage}: {opened.words}"
            self._engine.perform(Explain("pipeline", words))
        if self._engine.manifest.model.lora is not None:
            await self._begin_imported()  # at every version: it is no part of the state

    async def way_in(self) -> Join | Begin:
        """Wait until the state can be had: from siblings, or from the start of the lineage."""
        while True:
            machine, now = self._context.history.machine, self._engine.now()
            way = way_in(self.stage, self._engine.me, self._context.view, machine, now)
            if self._context.sees and not isinstance(way, Wait):
                self.knows_where = True
                return way
            if isinstance(way, Wait):
                self._waits(Phase.HISTORY, way.why)
            with trio.move_on_after(LOOK_S):
                await self._context.changed.wait()

    async def begin(self, lineage: Lineage) -> None:
        """Load the version from which a lineage begins, from our disk or from other holders.

        A file of ours that is not that version is set aside under a longer name.

        Raises:
            DownloadFailed: no donor gave that version, or what the stage begins with.
        """
        if not lineage.version:
            if self._engine.manifest.model.lora is None:
                await self._begin_imported()  # or as the worker made it from the seed
            return
        folder, state = self._context.checkpoints, lineage.hashes[self.stage]
        own = Checkpoint(self.stage, lineage.version, folder.path(self.stage, lineage.version))
        if own.path.exists():
            load = self._load(own.path, lineage.version, state)
            problem = await self._problem_of(load, "checkpoint", "disk")
            if problem is None:
                return
            self._put_away(folder, own, lineage, problem)
        path, history = self._context.snapshots / f"{BEGIN}{own.path.name}", self._context.history
        within_s = BEGIN_S + data_bytes(self._engine.manifest, self.stage) / SLOW_BYTES_PER_S
        how = lineage.version, state, history.holders(self.stage), path
        note = partial(history.begun_with, self.stage)
        try:
            await self._load_state(*how, note, within_s=within_s, resumable=True)
        finally:
            unlink(path)
        for begun in path.parent.glob(f".{BEGIN}stage-{self.stage}-v*"):
            unlink(begun)  # partial files of it, and of versions no longer wanted

    async def admission(self) -> Admit:
        """Ask the stage's replicas for admission, until a leader admits us at its version.

        Raises:
            DownloadFailed: nobody did in time.
        """
        self._waits(Phase.ADMISSION)
        with trio.move_on_after(JOIN_TIMEOUT_S):
            while True:
                for replica in self._context.view.serving(self.stage):
                    self._engine.send(replica.peer, JoinStage(self.stage))
                with trio.move_on_after(JOIN_RETRY_S):
                    sender, admit = await self._admitted.receive()
                    self.admitted = sender, admit.version
                    return admit
        raise DownloadFailed(f"nobody admitted us to stage {self.stage}")

    async def load(self, admit: Admit) -> None:
        """Download the version we were admitted at and load it into the worker.

        Raises:
            DownloadFailed: no donor gave that version.
        """
        name = f"joined-{self.stage}-v{admit.version}.safetensors"
        path = self._context.snapshots / name
        donors = [PeerId(donor) for donor in dict.fromkeys(admit.donors)]
        named_by = set(donors) if self.admitted is None else {*donors, self.admitted[0]}
        evidence = self._context.history.machine.evidence

        def note(had: bool) -> None:
            (evidence.had if had else evidence.not_had)(named_by)

        try:
            await self._load_state(admit.version, admit.state, donors, path, note)
        finally:
            unlink(path)

    # --- inside ------------------------------------------------------------------------------

    async def _ask(self, request: Request[ReplyT]) -> ReplyT:
        """Have the worker do what takes as long as a state does; raises as ``Worker.call``."""
        manifest, stage = self._engine.manifest, self.stage
        imported = sum(start.size_bytes for start in manifest.start[stage : stage + 1])
        return await self._worker.call(request, state_s(data_bytes(manifest, stage) + imported))

    async def _begin_imported(self) -> None:
        """Load the parameters of an imported model, from our disk or from members; nothing where no
        model was imported.

        Raises:
            DownloadFailed: no member gave them.
        """
        context = self._context
        if not self._engine.manifest.start:
            return
        path, wanted = context.starts[self.stage], self._engine.manifest.start[self.stage]
        start = LoadStart(path=str(path), digest=wanted.digest)
        if not path.exists() or await self._is_refused(start, path):
            try:
                blob = Blob(bytes.fromhex(wanted.digest), wanted.size_bytes)
                donors = sorted(self._engine.linked())
                await self._fetch("imported weights", blob, donors, path, resumable=True)
                await self._load_fetched(start, path)
            except DiskFailed:
                raise
            except DownloadFailed as failure:
                words = "no member gives the imported weights: the founder, or one who has held"
                raise DownloadFailed(f"{words} the stage, has to be here ({failure})") from failure
        await offer_start(context, self.stage)

    async def _is_refused(self, start: LoadStart, path: Path) -> bool:
        """Load a file of ours if it is the manifest's; else remove it."""
        if problem := await self._problem_of(start, "checkpoint"):
            self._engine.perform(Explain("transfer", str(problem), "warning"))
            await trio.to_thread.run_sync(unlink, path)
        return problem is not None

    def _load(self, path: Path, version: int, state: bytes) -> Load:
        rate = self._engine.amendments.rate_at(version)
        return Load(path=str(path), version=version, expected_hash=state.hex(), learning_rate=rate)

    async def _problem_of(self, request: Load | LoadStart, *kinds: str) -> RequestFailed | None:
        """Load a file; return its problem, if it is of one of these kinds; None: there is none."""
        self._waits(Phase.LOADING)
        try:
            await self._ask(request)
        except RequestFailed as failure:
            if failure.kind not in kinds:
                raise
            return failure
        return None

    async def _load_fetched(self, request: Load | LoadStart, path: Path) -> None:
        """Load a file that was verified as it came, from whomever it came.

        Raises:
            DiskFailed: the disk does not give it back; it is removed.
        """
        if problem := await self._problem_of(request, "checkpoint"):
            await trio.to_thread.run_sync(unlink, path)
            raise DiskFailed(f"the disk has spoiled what was fetched: {problem}")

    async def _load_state(
        self,
        version: int,
        state: bytes,
        donors: list[PeerId],
        path: Path,
        note: Callable[[bool], None],
        *,
        within_s: float = math.inf,
        resumable: bool = False,
    ) -> None:
        """Fetch the state of this hash, and load it by the amendments that are known then; ``note``
        is told whether the donors gave it.

        Raises:
            DownloadFailed: nobody gave it, or not in time.
        """
        blob = self._engine.downloads.state(self.stage, version, state)
        try:
            with trio.move_on_after(within_s) as limit:
                await self._fetch("state", blob, donors, path, resumable=resumable)
                await self._load_fetched(self._load(path, version, state), path)
            if limit.cancelled_caught:
                names = ", ".join(map(short, donors))
                raise DownloadFailed(f"its state did not come from {names} in {within_s:.0f} s")
        except DiskFailed:
            raise
        except DownloadFailed:
            note(False)
            raise
        note(True)

    def _put_away(
        self, folder: CheckpointFolder, own: Checkpoint, lineage: Lineage, problem: RequestFailed
    ) -> None:
        """Take a checkpoint of ours out of use; its bytes stay, for it may be the only copy. One
        that cannot be read now keeps its name."""
        context = self._context
        try:
            differs = read_info(own.path).hash != lineage.hashes[own.stage].hex()
        except CheckpointError:
            differs = False
        kept = own.path  # it also stays if the disk refuses
        if problem.kind == "checkpoint":
            with suppress(OSError):
                kept = folder.set_aside(own) if differs else folder.condemn(own)
        words = f"{problem}; it is kept as {kept} and the state is fetched from others"
        self._engine.perform(Explain("transfer", words, "warning"))
        context.history.disk_changed()

    async def _prepare_data(self) -> str:
        """Be able to read the data: all of them are here, or members give their leaves, from now
        on: opening the stage takes a while. The tokenizer that they bring is copied, for others
        will ask us for it."""
        self._waits(Phase.DATA)
        context, leaves = self._context, self._context.leaves
        if await leaves.open():  # not all of them
            brought, here = self._engine.manifest.data.tokenizer, leaves.has_tokenizer()
            if leaves.empty or not here:
                donors = await self._data_donors()
                if brought is not None and not here:
                    blob = Blob(bytes.fromhex(brought.digest), brought.size_bytes)
                    await self._fetch("tokenizer", blob, donors, leaves.tokenizer)
            leaves.at(
                max(self._context.view.committed(self.stage), context.history.lineage.version)
            )
        await offer_data(context)
        return str(leaves.folder)

    async def _data_donors(self) -> list[PeerId]:
        """Return members that offer the data.

        Raises:
            DataMissing: nobody does.
        """
        leaves = self._context.leaves
        self._waits(Phase.DATA_DONORS)
        with trio.move_on_after(ANSWER_S):
            while not leaves.offering:
                await trio.sleep(LOOK_FOR_ANSWERS_S)
        if leaves.offering:
            return sorted(leaves.offering)
        raise DataMissing("no member sends the training data")

    async def _fetch(
        self, what: str, blob: Blob, donors: list[PeerId], path: Path, *, resumable: bool = False
    ) -> None:
        """Download to ``path``."""
        self._waits(Phase.DATA_DOWNLOAD if what == "tokenizer" else Phase.DOWNLOAD)
        path.parent.mkdir(parents=True, exist_ok=True)
        begin, begins_s = trio.current_time(), IDLE_S
        if blob.version:
            begins_s += blob.size_bytes / SAVED_BYTES_PER_S
        await self._engine.downloads.fetch(
            blob, donors, path, begins_s=begins_s, resumable=resumable
        )
        seconds, size = max(trio.current_time() - begin, 1e-3), blob.size_bytes
        words = f"{size / 1e6:.1f} MB in {seconds:.1f} s, {8e-6 * size / seconds:.3g} Mbit/s"
        self._engine.perform(Explain("transfer", f"fetched the {what}: {words}"))

    def admit(self, sender: PeerId, admit: Admit, payload: bytes) -> None:
        """A leader admits us, if its message counts."""
        view, machine = self._context.view, self._context.history.machine
        believed = admission(self.stage, sender, admit, view, machine)
        if believed is not None:
            with suppress(trio.WouldBlock):  # more leaders than needed have admitted us
                self._admits.send_nowait((sender, believed))


def sweep_copies(folder: Path, version: int) -> None:
    """Remove the working copies in a folder that a killed process left behind: snapshots for
    newcomers and downloads, each as large as a stage. Files that cannot be removed stay.

    Call it only at the start of the process that holds the identity's lock, so that no other
    process uses the folder.

    Args:
        version: version at which the lineage begins; downloads of others are useless.
    """
    resumed = f".{BEGIN}*-v{version}.safetensors.part.tmp"
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if not path.match(resumed) and (path.is_file() or path.is_symlink()):
                unlink(path)
