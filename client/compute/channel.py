"""The worker's end of the channel to its node: a blocking socket.

A thread reads ahead, so that the next request is there when the one before is done. State: the
socket, and what was read. `receive` belongs to the one thread that executes requests; `send` may be
called from any thread. The node's end, which must never block, is in `process`.
"""

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Queue

import msgspec

from client.compute.frames import HEADER, pack, unpack_body, unpack_header
from client.compute.payload import Buffer

AHEAD = 2
"""Requests that are read before they are asked for, with all that they carry; the others wait in
the socket."""


@dataclass(frozen=True, slots=True)
class Received:
    """One frame."""

    id: int
    message: bytes
    payloads: list[memoryview]


class NodeGone(Exception):
    """The node closed its end: the worker has no more work."""


class Channel:
    """Frames in, frames out."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._read = Queue[Received | BaseException](AHEAD - 1)  # the thread has one more
        threading.Thread(target=self._read_ahead, name="requests", daemon=True).start()

    def receive(self) -> Received:
        """Wait for the next request.

        Raises:
            NodeGone: the other end is closed.
            FrameError: the bytes are no frame.
            MemoryError: there is no room for it.
        """
        received = self._read.get()
        if isinstance(received, BaseException):
            raise received
        return received

    def send(self, frame_id: int, message: msgspec.Struct, payloads: Sequence[Buffer]) -> None:
        """Write one reply.

        Args:
            frame_id: number of the request that it answers.
            message: the reply.
            payloads: in the order that the reply's docstring names.

        Raises:
            NodeGone: the other end is closed.
        """
        buffers = pack(frame_id, message, payloads)
        with self._sending:
            try:
                for buffer in buffers:
                    self._socket.sendall(buffer)
            except OSError as error:
                raise NodeGone from error

    def _read_ahead(self) -> None:
        try:
            while True:
                self._read.put(self._frame())
        except BaseException as error:  # whoever waits for a request would wait for ever
            self._read.put(error)

    def _frame(self) -> Received:
        body_bytes, payload_bytes = unpack_header(self._exactly(HEADER.size))
        envelope = unpack_body(self._exactly(body_bytes), payload_bytes)
        payloads = envelope.cut(memoryview(self._exactly(payload_bytes)))
        return Received(envelope.id, bytes(envelope.message), payloads)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._socket.recv_into(view)
            except OSError as error:
                raise NodeGone from error
            if count == 0:
                raise NodeGone
            view = view[count:]
        return data
