"""One connection to a node's control socket, which receives answers and updates.

Blocking; every wait has a deadline. Lines are bounded and typed. It is used through
``ControlClient``, which waits for each answer.
"""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from client.control import rpc
from client.control.updates import Update
from client.decoding import json_decoder

MAX_LINE_BYTES = 16 * 1024 * 1024
Answered = TypeVar("Answered")


class WireError(Exception):
    """The node does not answer, breaks the protocol, or refuses."""


class Gone(WireError):
    """The connection ended, or there was none."""


class ErrorBody(Struct, frozen=True):
    """The reason why a request was refused."""

    code: int
    message: str


class Received(Struct, frozen=True):
    """A line from the node: an answer if it has an ``id``, else a notification."""

    id: int | str | None = None
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorBody | None = None


_lines = msgspec.json.Decoder(Received)
_updates = msgspec.json.Decoder(Update)


class Wire:
    """A connection.

    Args:
        path: the socket.
        timeout_s: longest wait for the connection, and for the node to take a request.

    Raises:
        Gone: nobody listens there.
    """

    def __init__(self, path: Path, timeout_s: float = 2.0) -> None:
        self._buffer = bytearray()
        self._next_id = 1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise Gone(error.strerror or str(error)) from error

    def close(self) -> None:
        """End the connection; the node goes on."""
        self._socket.close()

    def send(self, method: str, **params: object) -> int:
        """Send a request and return its number; raises ``WireError``."""
        number, self._next_id = self._next_id, self._next_id + 1
        try:
            self._socket.sendall(rpc.encode_request(method, params, number))
        except TimeoutError as error:
            raise WireError("the volunteer does not answer") from error
        except OSError as error:
            raise Gone("the connection broke") from error
        return number

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next line, None if none comes in time.

        Raises:
            Gone: the connection ended.
            WireError: the line is too long or no answer.
        """
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_s = max(0.0, deadline - time.monotonic())  # else a slow line could last for ever
            try:
                ready, _, _ = select.select([self._socket], [], [], left_s)
                if self._socket not in ready:
                    return None
                chunk = self._socket.recv(256 * 1024)
            except (OSError, ValueError) as error:
                raise Gone("the connection broke") from error
            if not chunk:
                raise Gone("the volunteer closed the connection")
            self._buffer += chunk
            if len(self._buffer) > MAX_LINE_BYTES:
                raise WireError("the volunteer sent an answer that is too long")
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        try:
            return _lines.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"the volunteer sent something unexpected: {error}") from error


def decode(received: Received, kind: type[Answered]) -> Answered:
    """Return the typed result of an answer.

    Raises:
        WireError: it was refused, or is of another type.
    """
    if received.error is not None:
        raise WireError(received.error.message)
    try:
        return json_decoder(kind).decode(received.result)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"the volunteer's answer is malformed: {error}") from error


def decode_update(received: Received) -> Update:
    """Return the update that a notification carries; raises ``WireError``."""
    try:
        return _updates.decode(received.params)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"an update is malformed: {error}") from error
