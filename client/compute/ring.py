"""Shared memory for the payloads of one direction between node and worker.

A ring of one writer and one reader over an unlinked file that both processes map. There are no
counters in the shared memory: the frames on the socket carry the positions written and read, and
the socket orders memory accesses for both. A payload that does not fit is refused and goes through
the socket, so nothing here ever waits.

State: the mapping and, on the writer's side, two positions. Positions only grow; the offset in
memory is the remainder. A ring that has been read to its end starts from its beginning again, so
that occasional payloads stay in the same few pages, which are in the cache and need no zeroing.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Callable

from client.compute.errors import FrameError
from client.compute.payload import Buffer

_ALIGNMENT = 64


def create_shared_file(size_bytes: int) -> int:
    """A file descriptor of a nameless file of that size; pages are taken when written.

    Raises:
        OSError: there is no room for it.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("volunteer-ring", os.MFD_CLOEXEC)
    else:
        descriptor, path = tempfile.mkstemp(prefix="volunteer-ring-")
        os.unlink(path)
    os.ftruncate(descriptor, size_bytes)
    return descriptor


class RingWriter:
    """Places payloads one behind the other; `reclaim` frees their space.

    ``copy`` fills memory (the first) with as many bytes (the second); None: as Python does, while
    no other thread runs.
    """

    def __init__(
        self, descriptor: int, copy: Callable[[memoryview, Buffer], object] | None = None
    ) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self._capacity, self._copy = len(self._memory), copy
        self.written = 0
        self._reclaimed = 0

    def place(self, payload: Buffer) -> int | None:
        """Copy the payload in; its offset in the memory, or None if there is no room now."""
        size = len(payload)
        if self._reclaimed == self.written:
            self._reclaimed = self.written = _upwards(self.written, self._capacity)
        start = _upwards(self.written, _ALIGNMENT)
        if start % self._capacity + size > self._capacity:  # never split across the end
            start += self._capacity - start % self._capacity
        if size > self._capacity or start + size - self._reclaimed > self._capacity:
            return None
        offset = start % self._capacity
        if self._copy is None or not size:
            self._memory[offset : offset + size] = payload
        else:
            self._copy(memoryview(self._memory)[offset : offset + size], payload)
        self.written = start + size
        return offset

    def reclaim(self, position: int) -> None:
        """Everything written before the position has been read.

        Raises:
            FrameError: nothing was written there yet.
        """
        if position > self.written:
            raise FrameError(f"peer read up to {position}, only {self.written} was written")
        self._reclaimed = max(self._reclaimed, position)


def _upwards(position: int, step: int) -> int:
    """The next multiple, or the position itself if it is one."""
    return -(-position // step) * step


class RingReader:
    """Gives views of the other side's payloads; they are valid until that side is told
    otherwise."""

    def __init__(self, descriptor: int) -> None:
        self._memory = memoryview(mmap.mmap(descriptor, 0))
        self.read_up_to = 0

    def view(self, offset: int, size: int) -> memoryview:
        """The payload that was placed there, without a copy.

        Raises:
            FrameError: it would lie outside the memory.
        """
        if not 0 <= offset <= offset + size <= len(self._memory):
            raise FrameError(f"payload of {size} bytes at {offset} lies outside the ring")
        return self._memory[offset : offset + size]

    def release(self, position: int) -> None:
        """The views of all payloads before the position are released."""
        self.read_up_to = max(self.read_up_to, position)
