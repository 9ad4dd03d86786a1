"""Blobs between peers: states of stages, what they begin with, a tokenizer, leaves of data.

The donor's side (`Shelf`) serves the chunks of files; the receiver's side (`Downloads`) hands what
donors send to each `Download`, which writes verified chunks into a file at their places.
``protocol.transfer.fetch`` decides which donor is asked for which chunk.

A state travels without the header of its file, which follows from the manifest and its hash.
"""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from client.compute.checkpoint import CheckpointInfo, build_header
from client.store.positioned import read_at, write_at
from client.train.ports import Ports
from client.train.transfer.leaf_supply import LeafSupply
from client.train.transfer.state_size import data_bytes
from model_zoo.specs.slices import slices
from model_zoo.specs.state import stage_layout
from model_zoo.specs.state_hash import LeafHasher, leaf_digest, root
from protocol.ids import PeerId
from protocol.limits import CHUNK_BYTES, MAX_CHUNKS
from protocol.transfer.blob import Blob
from protocol.transfer.fetch import WINDOW, Fetch
from protocol.transfer.leaves import LeafEffect, StoreChunk
from protocol.wire.messages import Chunk, ChunkRequest

TICK_S = 0.25
KEPT_SNAPSHOTS = 4
FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK_BYTES = 512
"""Unit in which a file system says how much disk a file takes."""
ANSWER_S = 20.0
"""Seconds within which a donor begins to give a state that it names."""
IDLE_S = 120.0
"""Seconds without a chunk after which a download is given up; it may be tried again, perhaps with
other donors."""


@dataclass(frozen=True, slots=True)
class Filed:
    """A blob that lies in a file from ``start`` on; ``listed``: the digests of its chunks in a
    row."""

    blob: Blob
    listed: bytes
    start: int = 0


def filed_state(info: CheckpointInfo, digests: Sequence[bytes]) -> Filed:
    """Return the state in a checkpoint whose leaves have these digests."""
    size_bytes = info.size_bytes - info.data_start
    blob = Blob(bytes.fromhex(info.hash), size_bytes, info.stage, info.version)
    return Filed(blob, b"".join(digests), info.data_start)


@dataclass(slots=True)
class _Item:
    path: Path
    filed: Filed
    temporary: bool

    @property
    def version(self) -> int:
        return self.filed.blob.version


class Shelf:
    """The blobs that this volunteer serves; files are opened per chunk and may vanish any time."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._items: dict[bytes, _Item] = {}
        """By root, those put there last at the end."""
        self._skipped: dict[int, int] = {}
        """By stage: the newest version that was asked for here and is not written."""
        self.leaves: LeafSupply | None = None
        self.served_bytes = 0
        self.is_closed: Callable[[], bool] = bool
        """Whether nothing is served now."""

    def put(self, filed: Filed, path: Path, *, temporary: bool) -> None:
        """Serve a file; a permanent one replaces a temporary one, or what its place had before.
        Files that are gone are forgotten. A ``temporary`` file is the shelf's now: it is removed
        when it is superseded."""
        key = filed.blob.root
        for other, item in list(self._items.items()):
            if other != key and (item.path == path or _is_gone(item.path)):
                self._remove(other, but=path)
        known = self._items.get(key)
        if known is not None and known.filed == filed and known.temporary <= temporary:
            if temporary and path != known.path:
                unlink(path)  # the other one is served
            return
        if known is not None:
            self._remove(key, but=path)
        self._items[key] = _Item(path, filed, temporary)
        for old in self._snapshots()[:-KEPT_SNAPSHOTS]:
            self._remove(old)

    def skip(self, stage: int, version: int) -> None:
        """A state that others wait for is not written here: they are told when they ask."""
        self._skipped[stage] = version

    def withdraw_above(self, version: int) -> None:
        """Stop serving the states of later versions: they belong to a lineage that has ended."""
        for key, item in self._states():
            if item.version > version:
                self._remove(key)

    def _states(self, stage: int | None = None) -> list[tuple[bytes, _Item]]:
        """Return the states that are here, of one stage or of all."""
        states = [(key, item) for key, item in self._items.items() if item.version]
        return [one for one in states if stage in (None, one[1].filed.blob.stage)]

    async def request(self, sender: PeerId, request: ChunkRequest) -> None:
        """Serve a chunk, or say that it cannot be had. Nothing is said where the list of a state is
        asked for that may still be on its way."""
        closed = self.is_closed()
        data = None if closed else await self._read(request)
        if data is not None:
            self.served_bytes += len(data)
            self._ports.send(sender, Chunk(request.root, request.index), data)
        elif closed or request.index is not None or not self._may_come(request):
            self._ports.send(sender, Chunk(request.root, None))

    def _may_come(self, request: ChunkRequest) -> bool:
        """Whether a state may still be written here."""
        stage, version = request.stage, request.version
        past = any(item.version >= version for _, item in self._states(stage))
        return version > 0 and not past and version != self._skipped.get(stage)

    async def _read(self, request: ChunkRequest) -> bytes | None:
        """Return a chunk, or the list of digests; None: it cannot be read now. A file is withdrawn
        only if it is missing or shorter than it was."""
        key, index = request.root, request.index
        if self.leaves is not None and key == self.leaves.root:
            return await self.leaves.read(index)
        item = self._items.get(key)
        if item is None or (index or 0) >= item.filed.blob.count:
            return None
        try:
            return await trio.to_thread.run_sync(_chunk, item, index)
        except FileNotFoundError:
            if self._items.get(key) is not item:
                return await self._read(request)  # a checkpoint has taken a snapshot's place
            self._remove(key)
        except OSError:  # it may pass: too many open files, brief disk errors
            pass
        return None

    def close(self) -> None:
        """Remove temporary files."""
        for key in self._snapshots():
            self._remove(key)

    def _snapshots(self) -> list[bytes]:
        return [key for key, item in self._items.items() if item.temporary]

    def _remove(self, key: bytes, but: Path | None = None) -> None:
        """Withdraw it; a temporary file is removed, unless it is ``but``."""
        item = self._items.pop(key, None)
        if item is not None and item.temporary and item.path != but:
            unlink(item.path)


def filed(path: Path) -> Filed:
    """Return a file that is no state as a blob; reads all of it, so call it in a thread."""
    hasher, size_bytes = LeafHasher(), 0
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            hasher.update(memoryview(data))
            size_bytes += len(data)
    digests = hasher.digests
    return Filed(Blob(bytes.fromhex(root(0, digests)), size_bytes), b"".join(digests))


class DownloadFailed(Exception):
    """The whole blob could not be had."""


class DiskFailed(DownloadFailed):
    """This machine's disk cannot take it; the message names the disk and the bytes needed.
    ``needed_bytes``: that are to be free; 0: unknown, or room alone does not help."""

    def __init__(self, words: str, needed_bytes: int = 0) -> None:
        super().__init__(words)
        self.needed_bytes = needed_bytes


class Download:
    """A download into a file; the engine passes it messages, its user awaits it.

    Args:
        window: chunks asked for at a time of each donor; fewer leave more of the link to others.
        header: what the file has before the blob.
        resumable: keep the received part when it ends early; the next download to ``path``
            continues from there, in any process.
    """

    def __init__(
        self,
        ports: Ports,
        blob: Blob,
        donors: Sequence[PeerId],
        path: Path,
        window: int = WINDOW,
        *,
        header: bytes = b"",
        resumable: bool = False,
    ) -> None:
        self._ports, self._resumable = ports, resumable
        self._blob, self._header, self.root = blob, header, blob.root
        self._fetch = Fetch(blob, donors, window)
        self._path = path
        self._partial = path.with_name(f".{path.name}.part.tmp")
        self._file: int | None = None
        """Descriptor of the partial file, while it is being fetched."""
        self._failure: OSError | None = None
        self._changed = trio.Event()

    async def run(self, idle_s: float, begins_s: float) -> Filed:
        """Fetch everything, however slow the line is, and return what the complete file has. It is
        given up after ``idle_s`` without a chunk, but not before ``begins_s``: donors may still be
        writing it.

        Raises:
            DiskFailed: the disk is full or cannot be written.
            DownloadFailed: every donor was lost, or nothing came for so long.
        """
        try:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._partial, flags, 0o600)
            self._check_room()
            if self._resumable:
                held = await trio.to_thread.run_sync(_digests, self._file, len(self._header))
                self._fetch.resume(held)
            await self._fetch_all(idle_s, begins_s)
            write_at(self._file, self._header, 0)
            # a longer blob may have been begun before this one
            os.ftruncate(self._file, len(self._header) + self._blob.size_bytes)
            self._partial.replace(self._path)
        except FileNotFoundError as error:
            raise DownloadFailed(f"{self._partial} was removed while it was written") from error
        except OSError as error:
            raise self._disk_failed(error) from error
        finally:
            self._close()
        return Filed(self._blob, self._fetch.listed, len(self._header))

    async def _fetch_all(self, idle_s: float, begins_s: float) -> None:
        fetch, heard = self._fetch, trio.current_time()
        with trio.move_on_after(begins_s) as idle:
            self._perform(fetch.start(self._ports.now()), b"")
            while not (fetch.done or fetch.hopeless or self._failure):
                before = fetch.progress
                with trio.move_on_after(TICK_S):
                    await self._changed.wait()
                self._changed = trio.Event()
                self._perform(fetch.tick(self._ports.now()), b"")
                if fetch.progress != before:
                    heard = trio.current_time()
                    idle.deadline = max(idle.deadline, heard + idle_s)
        if self._failure is not None:
            raise self._failure
        if not fetch.done:
            silent = f"nothing came for {trio.current_time() - heard:.0f} s"
            why = "no donor is left" if fetch.hopeless else silent
            raise DownloadFailed(f"{fetch.progress[0]} of {self._blob.count} chunks came; {why}")

    def receive(self, sender: PeerId, message: Chunk, payload: bytes) -> None:
        """Take a chunk. A disk error is kept for ``run``, because it is not the sender's fault."""
        if self._file is None or self._failure is not None:
            return
        now, digest = self._ports.now(), leaf_digest([memoryview(payload)])
        try:
            self._perform(self._fetch.chunk(sender, message, payload, digest, now), payload)
        except OSError as error:
            self._failure = error
        self._changed.set()

    def lost(self, peer: PeerId) -> None:
        """A donor is gone."""
        self._perform(self._fetch.lost(peer, self._ports.now()), b"")
        self._changed.set()

    def _perform(self, effects: Sequence[LeafEffect], payload: bytes) -> None:
        for effect in effects:
            if isinstance(effect, StoreChunk):
                self._write(effect.index, payload)
            else:
                self._ports.perform(effect)

    def _write(self, index: int, data: bytes) -> None:
        if self._file is None:
            raise RuntimeError("chunks are written while the file is open")
        write_at(self._file, data, len(self._header) + index * CHUNK_BYTES)

    def _check_room(self) -> None:
        """Raise OSError if the disk lacks room for it, as far as is known."""
        free = self._free()
        if free is not None and self._lacks() > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _free(self) -> int | None:
        """Return the free bytes of the disk; None: not known."""
        with suppress(OSError):
            return shutil.disk_usage(self._partial.parent).free
        return None

    def _lacks(self) -> int:
        """Return how many bytes of the blob do not lie on the disk yet."""
        here = 0 if self._file is None else os.fstat(self._file).st_blocks * BLOCK_BYTES
        return max(0, self._blob.size_bytes - here)

    def _disk_failed(self, error: OSError) -> DiskFailed:
        if error.errno not in FULL:
            return DiskFailed(f"{self._partial} cannot be written: {error.strerror or error}")
        lacks_bytes = self._lacks()
        words = (
            f"{error.strerror}: the disk of {self._path.parent} is full: "
            f"{_megabytes(lacks_bytes)} more are needed for {self._path.name}, "
            f"{_megabytes(self._free() or 0)} are free"
        )
        return DiskFailed(words, lacks_bytes if self._resumable else self._blob.size_bytes)

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


class Downloads:
    """What is fetched from members now: each message goes to whom it concerns."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.takers: list[Download | LeafSupply] = []

    def receive(self, sender: PeerId, message: Chunk, payload: bytes = b"") -> None:
        """Take what a member sends of a blob."""
        for taker in [taker for taker in self.takers if taker.root == message.root]:
            taker.receive(sender, message, payload)

    def lost(self, peer: PeerId) -> None:
        """A member is gone: nobody must wait for it."""
        for taker in list(self.takers):
            taker.lost(peer)

    def state(self, stage: int, version: int, state_hash: bytes) -> Blob:
        """Return the state of a stage that has this hash at a version."""
        return Blob(state_hash, data_bytes(self.ports.manifest, stage), stage, version)

    async def fetch(
        self,
        blob: Blob,
        donors: Sequence[PeerId],
        path: Path,
        *,
        begins_s: float,
        window: int = WINDOW,
        resumable: bool = False,
    ) -> Filed:
        """Fetch a blob into a file; arguments and errors are those of ``Download`` and its
        ``run``."""
        header = self._header(blob) if blob.version else b""
        download = Download(
            self.ports, blob, donors, path, window, header=header, resumable=resumable
        )
        self.takers.append(download)
        try:
            return await download.run(IDLE_S, begins_s)
        finally:
            self.takers.remove(download)

    def _header(self, state: Blob) -> bytes:
        """Return what a checkpoint has before its data."""
        manifest = self.ports.manifest
        part = slices(manifest.layers_per_stage)[state.stage]
        layout = stage_layout(manifest.model, part)
        of = self.ports.swarm, state.stage, manifest.stage_count, state.version, state.root.hex()
        return build_header(CheckpointInfo(*of, layout, manifest.state))


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _digests(file: int, start: int) -> dict[int, bytes]:
    """Return the digests of the chunks behind a header; of zeros where nothing was written."""
    found = dict[int, bytes]()
    for index in range(min(MAX_CHUNKS, -(-os.fstat(file).st_size // CHUNK_BYTES))):
        with suppress(OSError):
            chunk = read_at(file, CHUNK_BYTES, start + index * CHUNK_BYTES)
            found[index] = leaf_digest([memoryview(chunk)])
    return found


def _chunk(item: _Item, index: int | None) -> bytes:
    """Return a chunk of a file; None: the digests of all. Raises `FileNotFoundError` where it is
    gone or shorter than it was, `OSError` where it cannot be read now."""
    if index is None:
        item.path.stat()
        return item.filed.listed
    place = index * CHUNK_BYTES
    expected = min(CHUNK_BYTES, item.filed.blob.size_bytes - place)
    with item.path.open("rb") as file:
        file.seek(item.filed.start + place)
        data = file.read(expected)
    if len(data) < expected:
        raise FileNotFoundError(f"{item.path} has become shorter")
    return data


def _is_gone(path: Path) -> bool:
    """Whether a file is there no more; one that cannot be read now may be."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def unlink(path: Path) -> None:
    """Remove a file if possible; a failure leaves a file behind and is no reason to stop the
    node."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
