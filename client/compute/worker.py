"""The worker process: reads requests from its node, executes them, writes replies.

Started as `python -m client.compute.worker --fd N --parent N`; imports torch, never libp2p
or trio. It lives as long as its node: it ends when the socket closes, and on Linux the kernel kills
it when the node dies, even in the middle of a long computation. The node's end of the socket, which
must never block, is in `process`.
"""

import argparse
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from queue import Queue

import msgspec

from client.compute.errors import FrameError
from client.compute.frames import HEADER, REQUESTS, Body, pack, unpack
from client.compute.payload import Buffer
from client.compute.requests import Answer, AnyRequest, Failed
from client.garbage import uncollected

_PR_SET_PDEATHSIG = 1
AHEAD = 2
"""Requests that are read before they are asked for, with all that they carry; the others wait in
the socket."""

Received = tuple[Body[AnyRequest], list[memoryview]]
"""A request with its payloads."""


class NodeGone(Exception):
    """The node closed its end: the worker has no more work."""


class Channel:
    """The worker's end of the blocking socket to its node.

    A thread reads ahead, so that the next request is there when the one before is done. `receive`
    belongs to the one thread that executes requests; `send` may be called from any thread.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._read = Queue[Received | BaseException](AHEAD - 1)  # the thread has one more
        threading.Thread(target=self._read_ahead, name="requests", daemon=True).start()

    def receive(self) -> Received:
        """Wait for the next request; return it with its payloads.

        Raises:
            NodeGone: the other end is closed.
            FrameError: the bytes are no frame of a request.
            MemoryError: there is no room for it.
        """
        received = self._read.get()
        if isinstance(received, BaseException):
            raise received
        return received

    def send(self, frame_id: int, message: msgspec.Struct, payloads: Sequence[Buffer]) -> None:
        """Write the reply to the request of that number; raises `NodeGone`."""
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
        body = unpack(self._exactly(*HEADER.unpack(self._exactly(HEADER.size))), REQUESTS)
        return body, body.cut(memoryview(self._exactly(sum(body.sizes))))

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


def serve(channel: Channel) -> None:
    """Execute requests until the node is gone; raises `FrameError` where it sends no frame."""
    with uncollected():
        from client.compute.executor import Executor
    executor = Executor(owns_process=True)
    try:
        while True:
            received, payloads = channel.receive()
            executor.execute(received.message, payloads, partial(_answer, channel, received.id))
    except NodeGone:
        executor.close()


def _answer(channel: Channel, number: int, reply: Answer, payloads: Sequence[Buffer]) -> None:
    with suppress(NodeGone):  # `receive` raises it in the thread that can act on it
        try:
            channel.send(number, reply, payloads)
        except NodeGone:
            raise
        except Exception as error:  # in a thread nobody would see it, and the node would wait
            channel.send(number, Failed(kind="internal", message=f"no reply: {error}"), ())


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere nothing); raises
    `NodeGone` where it has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise NodeGone


def main() -> int:
    """Entry point; returns the exit status, 0 when the node closed the socket."""
    parser = argparse.ArgumentParser(description="Compute worker of a volunteer; started by it.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    faulthandler.enable()
    # Ctrl-C, and the SIGTERM of a cluster, reach the node as well, which decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        die_with_parent(arguments.parent)
        serve(Channel(socket.socket(fileno=arguments.fd)))
    except NodeGone:
        return 0
    except FrameError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
