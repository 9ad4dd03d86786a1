"""Acquires a stage: finds the training data, opens the stage in the worker, downloads its state.

One object per attempt. The owner passes it the messages that concern its downloads. Only files
under their final names outlive the attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from client.compute.checkpoint import read_info
from client.compute.errors import CheckpointError
from client.compute.process import RequestFailed, Worker
from client.compute.requests import Load, LoadStart
from client.config import Settings
from client.errors import UserError
from client.store.checkpoints import Checkpoint, CheckpointFolder
from client.train.machine.capacity import Capacity, usable_memory_bytes
from client.train.ports import Copied, Ports, StageHolder
from client.train.recovery.history import History
from client.train.reporting.event_sink import EventSink
from client.train.stage import failpoints
from client.train.transfer.blobs import DiskFailed, Download, DownloadFailed, Shelf, blob_of_file
from client.train.transfer.data_search import (
    ASK_AGAIN_S,
    LIE_POINTS,
    TOKENIZER,
    DataSearch,
)
from client.train.transfer.leaf_supply import LeafSupply
from client.train.transfer.state_size import data_bytes, is_plausible
from client.train.workers.devices import Devices, devices_now
from client.train.workers.opening import Fit, open_stage_request
from protocol.amendments.book import Amendments
from protocol.effects import Explain, Penalise
from protocol.held_stage.acquisition import Begin, Join, Wait, admission, way_in
from protocol.held_stage.machine import Phase
from protocol.ids import PeerId, short
from protocol.manifest import Manifest
from protocol.recovery.stored import Lineage
from protocol.rounds.reports import state_digest
from protocol.wire.messages import Admit, BlobOffer, BlobQuery, JoinStage

ANSWER_S = 2 * ASK_AGAIN_S + 2.0
"""Seconds within which members with training data answer."""
LOOK_FOR_ANSWERS_S = 0.1
JOIN_RETRY_S = 1.0
JOIN_TIMEOUT_S = 600.0
IDLE_S = 120.0
"""Seconds without progress after which a download is restarted, perhaps from other donors."""
SAVED_BYTES_PER_S = 20e6
"""At which a donor writes a snapshot at least: it copies, hashes and writes it beside its work, and
answers when it is complete."""
BEGIN_S, SLOW_BYTES_PER_S = 600.0, 1e6
"""For so long, and for as long as the state takes at that rate, it is fetched from those who name
it; then they may be doubted (``protocol/recovery/evidence.py``)."""
LOOK_S = 2.0
_WORDS: Final = {"data": "tokenizer", "state": "state", "start": "imported weights"}
BEGIN: Final = "begin-"
"""Prefix of the file names of downloads for the start of a lineage."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of stage acquisition."""

    checkpoints: Path
    snapshots: Path
    starts: tuple[Path, ...] = ()
    """What the stages of an imported model begin with, by stage."""
    compiled: str = ""
    """For compiled blocks, by all swarms; empty: nothing is compiled."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Constants of all attempts."""

    ports: Ports
    event_sink: EventSink
    me: PeerId
    manifest: Manifest
    swarm: str
    settings: Settings
    capacity: Callable[[], Capacity]
    folders: Folders
    data_search: DataSearch
    linked: Callable[[], Iterable[PeerId]]
    """The members that can be asked."""
    shelf: Shelf
    history: History
    amendments: Callable[[], Amendments]
    """The founder's that are known; asked anew for each seat."""
    leaves: LeafSupply
    """Supplies the training data leaf by leaf."""

    def usable_bytes(self) -> int:
        """Return the memory that our stages may take."""
        return usable_memory_bytes(self.capacity(), self.settings)

    def devices(self) -> Devices:
        """Return what our devices have for a stage now."""
        return devices_now(self.settings, has_host=self.capacity().has_host)


class Waits(Protocol):
    """Says how far an attempt is."""

    def __call__(self, phase: Phase, words: str = "") -> None:
        """See ``HeldStage.waits``."""


class DataMissing(UserError):
    """No member has the data that stage 0 needs; the volunteer can hold other stages."""


def _offloads(stage: int, fit: Fit) -> str:
    size = f"{fit.offloaded_bytes / 2**20:.0f} MiB"
    return f"stage {stage} keeps {size} of moments and gradient sums in the GPU's host"


async def offer_data(terms: Terms) -> None:
    """Let others copy the leaves of the training data that are here, and their tokenizer."""
    terms.shelf.leaves = terms.leaves
    if terms.manifest.data.tokenizer is None or not terms.leaves.has_tokenizer():
        return
    path = terms.leaves.tokenizer
    blob = await trio.to_thread.run_sync(blob_of_file, "data", 0, TOKENIZER, path)
    terms.shelf.put(blob, path, temporary=False)


async def offer_start(terms: Terms, stage: int) -> None:
    """Let others copy what a stage begins with, if it is here."""
    if not terms.folders.starts:
        return
    path = terms.folders.starts[stage]
    with suppress(OSError):
        blob = await trio.to_thread.run_sync(blob_of_file, "start", stage, 0, path)
        terms.shelf.put(blob, path, temporary=False)


class StageAcquisition:
    """One attempt to take ``stage`` with ``worker``.

    Args:
        waits: called with the phase reached and, where that says too little, what is waited for.
    """

    def __init__(
        self,
        terms: Terms,
        stage: int,
        worker: Worker,
        holder: StageHolder,
        waits: Waits,
    ) -> None:
        self._terms, self.stage, self._worker, self._holder = terms, stage, worker, holder
        self._waits = waits
        self._download: Download | None = None
        self._admits, self._admitted = trio.open_memory_channel[Admit](4)
        self._changed = trio.Event()
        self.knows_where = False
        """Whether the state of one lineage is being fetched."""

    # --- input -------------------------------------------------------------

    def copied(self, peer: PeerId, message: Copied, payload: bytes) -> None:
        """Take a part of a blob that is being downloaded."""
        lie = self._lie_in(message) if isinstance(message, BlobOffer) else None
        if lie is not None:
            self._terms.ports.perform(Penalise(peer, *lie))
            self.peer_lost(peer)
        elif self._download is not None:
            self._download.receive(peer, message, payload)

    def peer_lost(self, peer: PeerId) -> None:
        """A peer was lost: a download must not wait for it."""
        if self._download is not None:
            self._download.lost(peer)

    def view_changed(self) -> None:
        """The view of the swarm has changed."""
        self._changed.set()

    # --- the steps ---------------------------------------------------------------------------

    async def open(self, fit: Fit) -> int:
        """Open the stage in the worker; ``fit`` says how it fits into memory.

        Returns:
            The elements of the stage's gradient.

        Raises:
            DataMissing: nobody has the training data.
            DownloadFailed: no member that has their tokenizer served it.
        """
        terms, corpus = self._terms, ""
        if self.stage == 0:
            corpus = await self._prepare_data()
        self._waits(Phase.OPENING)
        request = open_stage_request(
            terms.manifest,
            terms.swarm,
            self.stage,
            terms.settings,
            fit,
            corpus,
            terms.capacity().threads,
            terms.folders.compiled,
            terms.me,
        )
        if fit.offloaded_bytes:
            terms.ports.perform(Explain("pipeline", _offloads(self.stage, fit)))
        opened, _ = await self._worker.call(request)
        if opened.compiled:
            words = f"stage {self.stage}: {opened.compiled}"
            terms.ports.perform(Explain("pipeline", words))
        if terms.manifest.model.lora is not None:
            await self._begin_imported()  # at every version: it is no part of the state
        return opened.parameters

    async def way_in(self) -> Join | Begin:
        """Wait until the state can be had: from siblings, or from the start of the lineage."""
        while True:
            machine, now = self._terms.history.machine, self._terms.ports.now()
            way = way_in(self.stage, self._terms.me, self._holder.view, machine, now)
            if self._holder.sees and not isinstance(way, Wait):
                self.knows_where = True
                return way
            if isinstance(way, Wait):
                self._waits(Phase.HISTORY, way.why)
            await self._next_change()

    async def begin(self, lineage: Lineage) -> None:
        """Load the version from which a lineage begins, from our disk or from other holders.

        A file of ours that is not that version is set aside under a longer name. If the donors
        together give another state, each is asked separately.

        Raises:
            DownloadFailed: no donor gave that version, or what the stage begins with.
        """
        if not lineage.version:
            if self._terms.manifest.model.lora is None:
                await self._begin_imported()  # or as the worker made it from the seed
            return
        folder = CheckpointFolder(self._terms.folders.checkpoints)
        own = Checkpoint(self.stage, lineage.version, folder.path(self.stage, lineage.version))
        if own.path.exists():
            try:
                await self._load_beginning(own.path, lineage)
            except RequestFailed as failure:
                if failure.kind not in ("checkpoint", "disk"):
                    raise
                self._put_away(folder, own, lineage, failure)
            else:
                return
        path = self._terms.folders.snapshots / f"{BEGIN}{own.path.name}"
        try:
            await self._begin_with_others(lineage, path)
        finally:
            _unlink(path)
        for begun in path.parent.glob(f".{BEGIN}stage-{self.stage}-v*"):
            _unlink(begun)  # partial files of it, and of versions no longer wanted

    async def admission(self) -> Admit:
        """Ask the stage's replicas for admission, until a leader admits us at its version.

        Raises:
            DownloadFailed: nobody did in time.
        """
        self._waits(Phase.ADMISSION)
        with trio.move_on_after(JOIN_TIMEOUT_S):
            while True:
                for replica in self._holder.view.serving(self.stage):
                    self._terms.ports.send(replica.peer, JoinStage(self.stage))
                with trio.move_on_after(JOIN_RETRY_S):
                    return await self._admitted.receive()
        raise DownloadFailed(f"nobody admitted us to stage {self.stage}")

    async def load(self, admit: Admit) -> None:
        """Download the version we were admitted at and load it into the worker.

        If the donors together give a state that differs from the leader's hash, each is asked
        separately, so that a donor that lies or is damaged is left out.

        Raises:
            DownloadFailed: no donor gave that version.
        """
        name = f"joined-{self.stage}-v{admit.version}.safetensors"
        path = self._terms.folders.snapshots / name
        donors = [PeerId(donor) for donor in dict.fromkeys(admit.donors)]
        evidence = self._terms.history.machine.evidence
        try:
            failpoints.recovering(admit.version, self.stage, self._worker.pid)
            await self._first_of(donors, partial(self._load_from, admit, path))
            evidence.had(donors)
        except DiskFailed:
            raise
        except DownloadFailed:
            evidence.not_had(donors)
            raise
        finally:
            _unlink(path)

    # --- inside ------------------------------------------------------------------------------

    async def _begin_imported(self) -> None:
        """Load the parameters of an imported model, from our disk or from members; nothing where no
        model was imported.

        Raises:
            DownloadFailed: no member gave them.
        """
        terms = self._terms
        if not terms.manifest.start:
            return
        path = terms.folders.starts[self.stage]
        if not (path.exists() and await self._load_start(path)):
            try:
                await self._first_of(sorted(terms.linked()), partial(self._start_from, path))
            except DiskFailed:
                raise
            except DownloadFailed as failure:
                words = "no member gives the imported weights: the founder, or one who has held"
                raise DownloadFailed(f"{words} the stage, has to be here ({failure})") from failure
        await offer_start(terms, self.stage)

    async def _start_from(self, path: Path, donors: list[PeerId]) -> bool:
        """Begin with these donors' file; return whether it is the manifest's."""
        sources = await self._fetch(BlobQuery("start", self.stage, 0), donors, path, resumable=True)
        if await self._load_start(path):
            return True
        for source in sorted(sources):
            self._terms.ports.perform(Penalise(source, "start-of-wrong-digest", LIE_POINTS))
        return False

    async def _load_start(self, path: Path) -> bool:
        """Load a file if it is the manifest's; else remove it."""
        self._waits(Phase.LOADING)
        assert self._terms.manifest.start  # nobody asks else
        digest = self._terms.manifest.start[self.stage].digest
        try:
            await self._worker.call(LoadStart(path=str(path), digest=digest))
        except RequestFailed as failure:
            if failure.kind != "checkpoint":
                raise
            self._terms.ports.perform(Explain("transfer", str(failure), "warning"))
            await trio.to_thread.run_sync(_unlink, path)
            return False
        return True

    def _lie_in(self, offer: BlobOffer) -> tuple[str, int] | None:
        """Return what is wrong with an offer, and its points; None: nothing, as far as we see."""
        manifest = self._terms.manifest
        if offer.kind == "state" and not is_plausible(manifest, offer):
            return "checkpoint-of-wrong-size", 20
        size_bytes = manifest.start[self.stage].size_bytes if manifest.start else -1
        if offer.kind == "start" and offer.size_bytes != size_bytes:
            return "start-of-wrong-size", LIE_POINTS
        return None

    def _load(self, path: Path, version: int, expected: str | None = None) -> Load:
        rate = self._terms.amendments().rate_at(version)
        return Load(path=str(path), version=version, expected_hash=expected, learning_rate=rate)

    async def _load_beginning(self, path: Path, lineage: Lineage) -> None:
        self._waits(Phase.LOADING)
        expected = lineage.hashes[self.stage].hex()
        await self._worker.call(self._load(path, lineage.version, expected))

    async def _first_of(
        self, donors: list[PeerId], load: Callable[[list[PeerId]], Awaitable[bool]]
    ) -> None:
        """Load the state that all donors give together, or else that of a single one.

        Raises:
            DownloadFailed: nobody gave a state that ``load`` accepts.
        """
        alone = [[donor] for donor in donors] if len(donors) > 1 else []
        if await load(donors):
            return
        for donor in alone:
            with suppress(DownloadFailed):
                if await load(donor):
                    return
        raise DownloadFailed(f"no replica sent the wanted state of stage {self.stage}")

    async def _begin_with_others(self, lineage: Lineage, path: Path) -> None:
        """Load the beginning of a lineage from those who name it.

        Raises:
            DownloadFailed: none of them gave it in time; the file is continued the next time.
        """
        history, had = self._terms.history, False
        donors = history.holders(self.stage)
        within_s = BEGIN_S + data_bytes(self._terms.manifest, self.stage) / SLOW_BYTES_PER_S
        try:
            with trio.move_on_after(within_s):
                await self._first_of(donors, partial(self._begin_from, lineage, path))
                had = True
            if not had:
                names = ", ".join(map(short, donors))
                raise DownloadFailed(f"its state did not come from {names} in {within_s:.0f} s")
            history.begun_with(self.stage, had=True)
        except DiskFailed:
            raise
        except DownloadFailed:
            history.begun_with(self.stage, had=False)
            raise

    async def _begin_from(self, lineage: Lineage, path: Path, donors: list[PeerId]) -> bool:
        """Load these donors' state; return whether it is the start of the lineage."""
        query = BlobQuery("state", self.stage, lineage.version)
        sources = await self._fetch(query, donors, path, resumable=True)
        try:
            await self._load_beginning(path, lineage)
        except RequestFailed as failure:
            if failure.kind != "checkpoint":
                raise
            self._refuse(donors, str(failure))
            for source in sorted(sources):
                self._terms.ports.perform(Penalise(source, "checkpoint-of-wrong-state", 20))
            return False
        return True

    async def _load_from(self, admit: Admit, path: Path, donors: list[PeerId]) -> bool:
        """Load these donors' state; return whether it is the one that we were admitted at."""
        await self._fetch(BlobQuery("state", self.stage, admit.version), donors, path)
        self._waits(Phase.LOADING)
        problem = "its hash differs from the one that the stage's leader sent"
        try:
            loaded, _ = await self._worker.call(self._load(path, admit.version))
        except RequestFailed as failure:
            if failure.kind != "checkpoint":
                raise
            problem = str(failure)
        else:
            if not admit.state or state_digest(loaded.hash) == admit.state:
                return True
        self._refuse(donors, problem)
        return False

    def _refuse(self, donors: list[PeerId], problem: str) -> None:
        words = f"the state from {', '.join(map(short, donors))} is rejected: {problem}"
        self._terms.ports.perform(Explain("transfer", words, "warning"))

    def _put_away(
        self, folder: CheckpointFolder, own: Checkpoint, lineage: Lineage, problem: RequestFailed
    ) -> None:
        """Take a checkpoint of ours out of use; its bytes stay, for it may be the only copy. One
        that cannot be read now keeps its name."""
        terms = self._terms
        terms.shelf.withdraw(own.stage, own.version)
        try:
            differs = read_info(own.path).hash != lineage.hashes[own.stage].hex()
        except CheckpointError:
            differs = False
        kept = own.path  # it also stays if the disk refuses
        if problem.kind == "checkpoint":
            with suppress(OSError):
                kept = folder.set_aside(own) if differs else folder.condemn(own)
        words = f"{problem}; it is kept as {kept} and the state is fetched from others"
        terms.ports.perform(Explain("transfer", words, "warning"))
        terms.history.disk_changed()

    async def _prepare_data(self) -> str:
        """Be able to read the data: all of them are here, or members give their leaves, from now
        on: opening the stage takes a while."""
        self._waits(Phase.DATA)
        terms, leaves = self._terms, self._terms.leaves
        await leaves.open()
        if leaves.whole:
            terms.data_search.found()
        else:
            terms.data_search.lacks()
            if leaves.empty or not leaves.has_tokenizer():
                donors = await self._data_donors()
                if not leaves.has_tokenizer():
                    await self._copy_tokenizer(leaves, donors)
            leaves.at(max(self._holder.view.committed(self.stage), terms.history.lineage.version))
        await offer_data(terms)
        return str(leaves.folder)

    async def _copy_tokenizer(self, leaves: LeafSupply, donors: list[PeerId]) -> None:
        """Copy the tokenizer that the tokens bring: others will ask us for it.

        Raises:
            DownloadFailed: no donor gave it.
        """
        sources = await self._fetch(BlobQuery("data", 0, TOKENIZER), donors, leaves.tokenizer)
        if not leaves.has_tokenizer():
            await trio.to_thread.run_sync(_unlink, leaves.tokenizer)
            self._terms.data_search.lied(sources)
            raise DownloadFailed("another tokenizer came than the manifest's")

    async def _data_donors(self) -> list[PeerId]:
        """Return members that offer the data.

        Raises:
            DataMissing: nobody does.
        """
        search = self._terms.data_search
        self._waits(Phase.DATA_DONORS)
        with trio.move_on_after(ANSWER_S):
            while not search.donors():
                await trio.sleep(LOOK_FOR_ANSWERS_S)
        if donors := search.donors():
            return donors
        raise DataMissing("no member sends the training data")

    async def _fetch(
        self, query: BlobQuery, donors: list[PeerId], path: Path, *, resumable: bool = False
    ) -> frozenset[PeerId]:
        """Download to ``path``; return the donors, which are accountable for it."""
        what = _WORDS[query.kind]
        self._waits(Phase.DATA_DOWNLOAD if query.kind == "data" else Phase.DOWNLOAD)
        path.parent.mkdir(parents=True, exist_ok=True)
        download = Download(self._terms.ports, query, donors, path, resumable=resumable)
        self._download, begin = download, trio.current_time()
        saving_s = 0.0
        if query.kind == "state":
            saving_s = data_bytes(self._terms.manifest, self.stage) / SAVED_BYTES_PER_S
        try:
            await download.run(IDLE_S, IDLE_S + saving_s)
        finally:
            self._download = None
        seconds, size = max(trio.current_time() - begin, 1e-3), path.stat().st_size
        words = f"{size / 1e6:.1f} MB in {seconds:.1f} s, {8e-6 * size / seconds:.3g} Mbit/s"
        self._terms.ports.perform(Explain("transfer", f"fetched the {what}: {words}"))
        return download.sources

    def admit(self, sender: PeerId, admit: Admit, payload: bytes) -> None:
        """A leader admits us, if its message counts."""
        view, machine = self._holder.view, self._terms.history.machine
        believed = admission(self.stage, sender, admit, view, machine)
        if believed is not None:
            with suppress(trio.WouldBlock):  # more leaders than needed have admitted us
                self._admits.send_nowait(believed)

    async def _next_change(self) -> None:
        self._changed = trio.Event()
        with trio.move_on_after(LOOK_S):
            await self._changed.wait()


def _unlink(path: Path) -> None:
    """Remove a working copy if there is one and the disk lets us."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
