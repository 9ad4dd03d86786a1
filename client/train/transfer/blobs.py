"""Blobs between peers: states of stages, what they begin with, a tokenizer, leaves of data.

The donor's side (`Shelf`) answers queries with offers and serves the chunks of files;
the receiver's side (`Downloads`) hands what donors send to each `Download`, which writes verified
chunks into a file at their places. ``protocol.transfer.fetch`` decides which donor is asked for
which chunk.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from client.store.positioned import read_at, write_at
from client.train.ports import Copied, Ports
from client.train.transfer.state_size import is_plausible
from client.train.workers.tasks import payload_digest
from protocol.effects import Penalise, Send
from protocol.ids import PeerId, SwarmId
from protocol.limits import CHUNK_BYTES, MAX_BLOB_BYTES, MAX_CHUNKS
from protocol.manifest import Manifest
from protocol.transfer.blob import Blob, chunk_count, refusal
from protocol.transfer.fetch import WINDOW, Fetch, FetchEffect, StoreChunk
from protocol.transfer.leaves import LIE_POINTS, is_of_leaves
from protocol.wire.messages import BlobKind, BlobOffer, BlobQuery, Chunk, ChunkRequest

TICK_S = 0.25
FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK_BYTES = 512
"""Unit in which a file system says how much disk a file takes."""
_Key = tuple[BlobKind, int, int]
"""Kind, stage and version."""
IDLE_S = 120.0
"""Seconds without a chunk after which a download is given up; it may be tried again, perhaps with
other donors."""


@dataclass(slots=True)
class _Item:
    path: Path
    blob: Blob
    temporary: bool


def _key(of: BlobOffer | BlobQuery | Chunk | ChunkRequest) -> _Key:
    """Return what names a blob."""
    return of.kind, of.stage, of.version


class LeafGiver(Protocol):
    """Gives leaves of token data to members."""

    def offer(self) -> BlobOffer | None:
        """Return the offer of what is here; None: there is nothing."""

    async def read(self, index: int) -> bytes:
        """Return a leaf as it is sent; empty: it is not here."""


class Shelf:
    """The blobs that this volunteer serves; files are opened per chunk and may vanish any time."""

    def __init__(self, ports: Ports, keep_snapshots: int = 4) -> None:
        self._ports = ports
        self._items: dict[_Key, _Item] = {}
        self._snapshots: list[_Key] = []
        self._skipped: dict[int, int] = {}
        """By stage: the newest version that was asked for here and is not written."""
        self._keep_snapshots = keep_snapshots
        self.leaves: LeafGiver | None = None
        self.served_bytes = 0
        self.closed_because: Callable[[], str] = str
        """Why nothing is served now, in words; empty: it is."""

    def put(self, blob: Blob, path: Path, *, temporary: bool) -> None:
        """Offer a file; a permanent one replaces a temporary one, or other bytes of the same name.

        Args:
            blob: what it is, and the digests of its chunks.
            path: the file.
            temporary: the shelf now owns the file and removes it when it is superseded.
        """
        key = _key(blob.offer)
        known = self._items.get(key)
        if known is not None and known.blob == blob and known.temporary <= temporary:
            if temporary and path != known.path:
                unlink(path)  # the other one is served
            return
        if known is not None:
            self._remove(key, but=path)
        self._items[key] = _Item(path, blob, temporary)
        if temporary:
            self._snapshots.append(key)
            while len(self._snapshots) > self._keep_snapshots:
                self._remove(self._snapshots[0])

    def skip(self, stage: int, version: int) -> None:
        """A state that others wait for is not written here: they are told when they ask."""
        self._skipped[stage] = version

    def withdraw(self, stage: int, version: int) -> None:
        """Stop offering a state whose file is gone."""
        self._remove(("state", stage, version))

    def withdraw_above(self, version: int) -> None:
        """Stop offering the states of later versions: they belong to a lineage that has ended."""
        for key in [key for key in self._items if key[0] == "state" and key[2] > version]:
            self._remove(key)

    def offer(self, stage: int, version: int) -> BlobOffer | None:
        """Return our offer of a stage's state."""
        item = self._items.get(("state", stage, version))
        return None if item is None else item.blob.offer

    def query(self, sender: PeerId, query: BlobQuery) -> None:
        """Answer with the blob asked for, or that it cannot be had. A later state may still be on
        its way: then with nothing."""
        key, closed = _key(query), bool(self.closed_because())
        item = self._items.get(key)
        offer = None if item is None else item.blob.offer
        if is_of_leaves(query):
            offer = None if self.leaves is None else self.leaves.offer()
        if offer is not None and not closed:
            self._ports.send(sender, offer)
            return
        gone = any(held[:2] == key[:2] and held[2] > query.version for held in self._items)
        skipped = query.version == self._skipped.get(query.stage)
        if closed or query.kind != "state" or gone or skipped:
            self._ports.send(sender, refusal(*key))

    async def request(self, sender: PeerId, request: ChunkRequest) -> None:
        """Serve a chunk, or say that it cannot be had."""
        key = _key(request)
        data = None if self.closed_because() else await self._read(request)
        if data is None:
            self._ports.send(sender, refusal(*key))
            return
        self.served_bytes += len(data)
        self._ports.send(sender, Chunk(*key, request.index), data)

    async def _read(self, request: ChunkRequest) -> bytes | None:
        """Return a chunk, or the list of digests; None: it cannot be read now. A file is withdrawn
        only if it is missing or shorter than offered."""
        key, index = _key(request), request.index
        if is_of_leaves(request) and self.leaves is not None:
            return None if index is None else await self.leaves.read(index)
        item = self._items.get(key)
        if item is None or (index or 0) >= chunk_count(item.blob.offer.size_bytes):
            return None
        try:
            return await trio.to_thread.run_sync(_chunk, item, index)
        except FileNotFoundError:
            if self._items.get(key) is item:
                self._remove(key)
        except OSError:  # it may pass: too many open files, brief disk errors
            pass
        return None

    def close(self) -> None:
        """Remove temporary files."""
        for key in list(self._snapshots):
            self._remove(key)

    def _remove(self, key: _Key, but: Path | None = None) -> None:
        """Withdraw it; a temporary file is removed, unless it is ``but``."""
        item = self._items.pop(key, None)
        if item is not None and item.temporary:
            self._snapshots.remove(key)
            if item.path != but:
                unlink(item.path)


def blob_of_file(kind: BlobKind, stage: int, version: int, path: Path) -> Blob:
    """Return a file as a blob; reads the whole file, so call it in a thread for large ones.

    Args:
        kind: a stage's state, a tokenizer, or what a stage begins with.
        stage: its stage.
        version: its version.
        path: the file.

    Raises:
        ValueError: it is larger than any blob.
    """
    digests, size = [], 0
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            digests.append(payload_digest(data))
            size += len(data)
    if size > MAX_BLOB_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BLOB_BYTES} bytes")
    return Blob.of(kind, stage, version, size, digests)


class DownloadFailed(Exception):
    """The whole blob could not be had."""


class DiskFailed(DownloadFailed):
    """This machine's disk cannot take it; the message names the disk and the bytes needed.

    Args:
        words: the message.
        needed_bytes: that are to be free; 0: unknown, or room alone does not help.
    """

    def __init__(self, words: str, needed_bytes: int = 0) -> None:
        super().__init__(words)
        self.needed_bytes = needed_bytes


class Download:
    """A download into a file; the engine passes it messages, its user awaits it.

    Args:
        window: chunks asked for at a time of each donor; fewer leave more of the link to others.
        resumable: keep the received part when it ends early; the next download to ``path``
            continues from there, in any process.
    """

    def __init__(
        self,
        ports: Ports,
        query: BlobQuery,
        donors: Sequence[PeerId],
        path: Path,
        window: int = WINDOW,
        *,
        resumable: bool = False,
    ) -> None:
        self._ports, self._resumable = ports, resumable
        self._fetch = Fetch(query, list(donors), window)
        self._path = path
        self._partial = path.with_name(f".{path.name}.part.tmp")
        self._file: int | None = None
        """Descriptor of the partial file, while it is being fetched."""
        self._failure: OSError | None = None
        self._no_room, self._too_large = "", 0
        self._changed = trio.Event()

    @property
    def sources(self) -> frozenset[PeerId]:
        """The peers that served a chunk of the blob and are accountable for it."""
        return self._fetch.sources

    async def run(self, idle_s: float, begins_s: float | None = None) -> Path:
        """Fetch everything and return the complete file, however slow the line is.

        Args:
            idle_s: seconds without a chunk after which it is given up.
            begins_s: the same before the first one; None: as later.

        Raises:
            DiskFailed: the disk is full or cannot be written.
            DownloadFailed: every donor was lost, or nothing came for so long.
        """
        try:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._partial, flags, 0o600)
            if self._resumable:
                self._fetch.resume(await trio.to_thread.run_sync(_digests, self._file))
            await self._fetch_all(idle_s, idle_s if begins_s is None else begins_s)
            if offer := self._fetch.offer:  # a longer blob may have been begun before this one
                os.ftruncate(self._file, offer.size_bytes)
            self._partial.replace(self._path)
        except FileNotFoundError as error:
            raise DownloadFailed(f"{self._partial} was removed while it was written") from error
        except OSError as error:
            needed_bytes = self._needed() if error.errno in FULL else 0
            raise DiskFailed(self._disk_words(error), needed_bytes) from error
        finally:
            self._close()
        return self._path

    async def _fetch_all(self, idle_s: float, begins_s: float) -> None:
        fetch = self._fetch
        with trio.move_on_after(begins_s) as idle:
            self._perform(fetch.start(self._ports.now()), b"")
            while not (fetch.done or fetch.hopeless or self._failure):
                before = fetch.progress
                with trio.move_on_after(TICK_S):
                    await self._changed.wait()
                self._changed = trio.Event()
                self._perform(fetch.tick(self._ports.now()), b"")
                if fetch.progress != before:
                    idle.deadline = trio.current_time() + idle_s
        if self._failure is not None:
            raise self._failure
        if not fetch.done:
            have, total = fetch.progress
            if self._no_room and not total:
                raise DiskFailed(self._no_room, self._too_large)
            raise DownloadFailed(f"{have} of {total or '?'} chunks came; no donor is left")

    def concerns(self, message: Copied) -> bool:
        """Whether a message is about what is wanted here."""
        return self._fetch.concerns(message)

    def receive(self, sender: PeerId, message: Copied, payload: bytes) -> None:
        """Take an offer or a chunk.

        A disk error is kept for ``run``, because it is not the sender's fault.

        Args:
            sender: the donor.
            message: the message.
            payload: the chunk's bytes, else empty.
        """
        if self._file is None or self._failure is not None:
            return
        now = self._ports.now()
        match message:
            case BlobOffer():
                if self.concerns(message) and (lack := self._lack(message.size_bytes)):
                    # for others, what they offer may be smaller
                    self._no_room, self._too_large = lack, message.size_bytes
                    self._perform(self._fetch.lost(sender, now), b"")
                else:
                    self._perform(self._fetch.offered(sender, message, now), b"")
            case Chunk():
                effects = self._fetch.chunk(sender, message, payload, payload_digest(payload), now)
                try:
                    self._perform(effects, payload)
                except OSError as error:
                    self._failure = error
        self._changed.set()

    def lost(self, peer: PeerId) -> None:
        """A donor is gone."""
        self._perform(self._fetch.lost(peer, self._ports.now()), b"")
        self._changed.set()

    def _perform(self, effects: Sequence[FetchEffect], payload: bytes) -> None:
        for effect in effects:
            match effect:
                case Send(peer, message):
                    self._ports.send(peer, message)
                case Penalise():
                    self._ports.perform(effect)
                case StoreChunk(index):
                    self._write(index, payload)

    def _write(self, index: int, data: bytes) -> None:
        if self._file is None:
            raise RuntimeError("chunks are written while the file is open")
        write_at(self._file, data, index * CHUNK_BYTES)

    def _lack(self, size_bytes: int) -> str:
        """Return why so many bytes do not fit on the disk; empty: they do, or it is unknown."""
        try:
            taken = os.fstat(self._file).st_blocks if self._file is not None else 0
            here = taken * BLOCK_BYTES
            free = shutil.disk_usage(self._partial.parent).free
        except OSError:
            return ""
        missing = size_bytes - here - free
        return self._full_words(size_bytes - here, free) if missing > 0 else ""

    def _full_words(self, needed: int, free: int) -> str:
        return (
            f"the disk of {self._path.parent} is full: {_megabytes(needed)} more are needed for "
            f"{self._path.name}, {_megabytes(free)} are free"
        )

    def _needed(self) -> int:
        """Return how many more bytes the disk needs; 0: unknown."""
        have, total = self._fetch.progress
        offer = self._fetch.offer
        return min((total - have + 1) * CHUNK_BYTES, offer.size_bytes) if offer else 0

    def _disk_words(self, error: OSError) -> str:
        if error.errno in FULL and (needed := self._needed()):
            free = 0
            with suppress(OSError):
                free = shutil.disk_usage(self._path.parent).free
            return f"{error.strerror}: {self._full_words(needed, free)}"
        return f"{self._partial} cannot be written: {error.strerror or error}"

    def _close(self) -> None:
        """Stop; the received part stays if the next download can continue from it."""
        file, self._file = self._file, None
        if file is None:
            return
        empty = not os.fstat(file).st_size
        with suppress(OSError):
            os.close(file)
        if empty or not self._resumable:
            unlink(self._partial)


class Taker(Protocol):
    """Waits for what members send of a blob."""

    def concerns(self, message: Copied) -> bool:
        """Whether a message is about that blob."""

    def receive(self, sender: PeerId, message: Copied, payload: bytes) -> None:
        """Take an offer or a chunk."""

    def lost(self, peer: PeerId) -> None:
        """A member is gone, or lies."""


class Downloads:
    """What is fetched from members now: each message goes to whom it concerns.

    Args:
        manifest: knows the sizes of the run's blobs; who offers another one lies.
        swarm: its id.
    """

    def __init__(self, ports: Ports, manifest: Manifest, swarm: SwarmId) -> None:
        self.ports, self.manifest, self.swarm = ports, manifest, swarm
        self._takers: list[Taker] = []

    def add(self, taker: Taker) -> None:
        """Hand somebody what concerns it from now on."""
        self._takers.append(taker)

    def receive(self, sender: PeerId, message: Copied, payload: bytes = b"") -> None:
        """Take what a member sends of a blob."""
        concerned = [taker for taker in self._takers if taker.concerns(message)]
        lie = None
        if concerned and isinstance(message, BlobOffer) and message.size_bytes:
            lie = self._lie_in(message)
        if lie is not None:
            self.ports.perform(Penalise(sender, *lie))
        for taker in concerned:
            if lie is None:
                taker.receive(sender, message, payload)
            else:
                taker.lost(sender)

    def lost(self, peer: PeerId) -> None:
        """A member is gone: nobody must wait for it."""
        for taker in list(self._takers):
            taker.lost(peer)

    async def fetch(
        self,
        query: BlobQuery,
        donors: Sequence[PeerId],
        path: Path,
        *,
        begins_s: float | None = None,
        window: int = WINDOW,
        resumable: bool = False,
    ) -> frozenset[PeerId]:
        """Fetch a blob into a file; the other arguments are those of ``Download``.

        Returns:
            The donors that are accountable for its bytes.

        Raises:
            DiskFailed: the disk is full or cannot be written.
            DownloadFailed: every donor was lost, or nothing came for too long.
        """
        download = Download(self.ports, query, donors, path, window, resumable=resumable)
        self._takers.append(download)
        try:
            await download.run(IDLE_S, begins_s)
        finally:
            self._takers.remove(download)
        return download.sources

    def _lie_in(self, offer: BlobOffer) -> tuple[str, int] | None:
        """Return what is wrong with the size of an offer, and its points; None: nothing."""
        manifest, data = self.manifest, self.manifest.data
        if offer.kind == "state":
            return None if is_plausible(manifest, offer) else ("checkpoint-of-wrong-size", 20)
        if offer.kind == "start":
            size_bytes = manifest.start[offer.stage].size_bytes
        elif is_of_leaves(offer):
            size_bytes = data.kept_bytes
        else:
            size_bytes = data.tokenizer.size_bytes if data.tokenizer is not None else -1
        right = offer.size_bytes == size_bytes
        return None if right else (f"{offer.kind}-of-wrong-size", LIE_POINTS)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _digests(file: int) -> dict[int, bytes]:
    """Return the digests of the bytes present of a blob; of zeros where nothing was written."""
    found = dict[int, bytes]()
    for index in range(min(MAX_CHUNKS, -(-os.fstat(file).st_size // CHUNK_BYTES))):
        with suppress(OSError):
            found[index] = payload_digest(read_at(file, CHUNK_BYTES, index * CHUNK_BYTES))
    return found


def _chunk(item: _Item, index: int | None) -> bytes:
    """Return a chunk of an offered file, or the list of their digests.

    Raises:
        FileNotFoundError: the file is gone, or shorter than it was when it was offered.
        OSError: it cannot be read now.
    """
    if index is None:
        return item.blob.listed
    place = index * CHUNK_BYTES
    expected = min(CHUNK_BYTES, item.blob.offer.size_bytes - place)
    with item.path.open("rb") as file:
        file.seek(place)
        data = file.read(expected)
    if len(data) < expected:
        raise FileNotFoundError(f"{item.path} has become shorter")
    return data


def unlink(path: Path) -> None:
    """Remove a file if possible; a failure leaves a file behind and is no reason to stop the
    node."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
