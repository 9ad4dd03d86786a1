"""One connection to a node's control socket that takes answers and updates as they come.

Blocking, for the thread of a source. Answers are bounded and typed; whatever the node sends that
is neither is passed over.
"""

from __future__ import annotations

import select
import socket
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from client.control import rpc
from client.control.methods import Greeting

MAX_LINE_BYTES = 16 * 1024 * 1024
CONNECT_TIMEOUT_S = 2.0
Answered = TypeVar("Answered")


class WireError(Exception):
    """The connection ended, or the node does not speak as it should.

    ``nobody``: there is no node at all.
    """

    nobody = False


class ErrorBody(Struct, frozen=True):
    """Why a request was refused."""

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


class Wire:
    """A connection.

    Raises:
        WireError: nobody listens there.
    """

    def __init__(self, path: Path) -> None:
        self._buffer = bytearray()
        self._next_id = 1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            failure = WireError(error.strerror or str(error))
            failure.nobody = isinstance(error, FileNotFoundError | ConnectionRefusedError)
            raise failure from error

    def close(self) -> None:
        """End the connection; the node goes on."""
        self._socket.close()

    def send(self, method: str, **params: object) -> int:
        """Send a request and return its number."""
        number, self._next_id = self._next_id, self._next_id + 1
        try:
            self._socket.sendall(rpc.encode_request(method, params, number))
        except OSError as error:
            raise WireError("the connection broke") from error
        return number

    def receive(self, timeout_s: float, wake: socket.socket | None = None) -> Received | None:
        """Return the next line, None if none comes in time or ``wake`` becomes readable."""
        while b"\n" not in self._buffer:
            watched = [self._socket] if wake is None else [self._socket, wake]
            try:
                ready, _, _ = select.select(watched, [], [], timeout_s)
                if self._socket not in ready:
                    return None
                chunk = self._socket.recv(256 * 1024)
            except (OSError, ValueError) as error:
                raise WireError("the connection broke") from error
            if not chunk:
                raise WireError("the volunteer closed the connection")
            self._buffer += chunk
            if len(self._buffer) > MAX_LINE_BYTES:
                raise WireError("the volunteer sends too much")
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        try:
            return _lines.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"the volunteer does not speak as expected: {error}") from error

    def greet(self) -> Greeting:
        """Say hello and return what the node says of itself."""
        number = self.send("hello", version=rpc.API_VERSION)
        return decode(self.answer_to(number), Greeting)

    def answer_to(self, number: int, timeout_s: float = 5.0) -> Received:
        """Return the answer to a request; only where no updates are expected yet."""
        found = self.receive(timeout_s)
        if found is None or found.id != number:
            raise WireError("the volunteer does not answer")
        return found


def decode(received: Received, kind: type[Answered]) -> Answered:
    """Return the typed result of an answer.

    Raises:
        WireError: it was refused, or is of another type.
    """
    if received.error is not None:
        raise WireError(received.error.message)
    try:
        return msgspec.json.decode(received.result, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"the volunteer's answer is malformed: {error}") from error
