"""The worker's end of the channel to its node: a blocking socket and two rings.

State: the socket, both rings, and how far the requests were read. `receive` belongs to the one
thread that executes requests; `send` may be called from any thread. The node's end, which must
never block, is in `process`.
"""

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from client.compute.frames import HEADER, pack, payload_views, unpack_body, unpack_header
from client.compute.payload import Buffer
from client.compute.ring import RingReader, RingWriter


@dataclass(frozen=True, slots=True)
class Received:
    """One frame; the payloads are views that end when `Channel.release` gets `position`."""

    id: int
    message: bytes
    payloads: list[memoryview]
    position: int


class NodeGone(Exception):
    """The node closed its end: the worker has no more work."""


class Channel:
    """Frames in, frames out."""

    def __init__(self, connection: socket.socket, incoming: RingReader, outgoing: RingWriter):
        self._socket = connection
        self._incoming = incoming
        self._outgoing = outgoing
        self._sending, self._placing = threading.Lock(), threading.Lock()
        """Frames leave one by one; whoever waits for the socket does not hold the ring up."""

    def receive(self) -> Received:
        """Wait for the next request.

        Raises:
            NodeGone: the other end is closed.
            FrameError: the bytes are no frame.
        """
        header = unpack_header(self._exactly(HEADER.size))
        envelope = unpack_body(self._exactly(header.body_bytes), header)
        inline = memoryview(self._exactly(header.inline_bytes))
        with self._placing:
            self._outgoing.reclaim(header.read_up_to)
        payloads = payload_views(envelope, inline, self._incoming)
        return Received(envelope.id, bytes(envelope.message), payloads, header.written)

    def release(self, received: Received) -> None:
        """The request's payloads are not needed any more; the next frame out says so."""
        self._incoming.release(received.position)

    def send(self, frame_id: int, message: msgspec.Struct, payloads: Sequence[Buffer]) -> None:
        """Write one reply.

        Args:
            frame_id: number of the request that it answers.
            message: the reply.
            payloads: in the order that the reply's docstring names.

        Raises:
            NodeGone: the other end is closed.
        """
        with self._sending:
            with self._placing:
                read_up_to = self._incoming.read_up_to
                buffers = pack(frame_id, message, payloads, self._outgoing, read_up_to)
            try:
                for buffer in buffers:
                    self._socket.sendall(buffer)
            except OSError as error:
                raise NodeGone from error

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
