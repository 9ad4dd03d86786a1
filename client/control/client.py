"""The calling side of the control socket for commands: asks, and waits for the answer.

Blocking; every wait has a deadline. Lines are bounded and typed.
"""

from __future__ import annotations

import functools
import inspect
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from client.control import rpc
from client.control.methods import METHODS, ControlApi
from client.control.snapshot import Snapshot
from client.control.sockets import live_sockets
from client.decoding import json_decoder
from client.errors import ExitCode, UserError

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
RESTART: Final = "it may be another version: end it by its service, or by kill and its process id"
Answered = TypeVar("Answered")


class ControlError(UserError):
    """The node refused, answered nonsense, or did not answer in time."""

    def __init__(self, message: str, next_step: str = "read the log: volunteer logs") -> None:
        super().__init__(message, next_step, self.code)

    code = ExitCode.RUNTIME


class NotRunning(ControlError):
    """No node listens where one was looked for."""

    code = ExitCode.NOT_RUNNING


class NoAnswer(ControlError):
    """A node listens, but does not answer in time."""


class _Refusal(Struct, frozen=True):
    code: int
    message: str


class _Line(Struct, frozen=True):
    """A line from the node."""

    id: int | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: _Refusal | None = None


_lines = msgspec.json.Decoder(_Line)


class ControlClient(ControlApi):
    """One connection to one node, whose methods it calls; use it as a context manager.

    Attributes:
        greeting: the node's status when we connected.

    Raises:
        NotRunning: nobody listens on ``path``.
        ControlError: the node speaks another version, or does not answer within ``timeout_s``.
    """

    def __init__(self, path: Path, timeout_s: float = 5.0) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._buffer, self._number = bytearray(), 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise NotRunning(f"no volunteer listens on {path}") from error
        try:
            self.greeting = self.call("status", Snapshot)
        except ControlError:
            self.close()
            raise

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the node goes on."""
        self._socket.close()

    def call(self, method: str, kind: type[Answered], **params: Any) -> Answered:
        """Call a method and return its typed result.

        Raises:
            ControlError: an error answer, a malformed answer, or none in time.
        """
        self._number += 1
        try:
            self._socket.sendall(rpc.encode_request(method, params, self._number))
        except TimeoutError as error:
            raise self._no_answer() from error
        except OSError as error:
            raise self._ended() from error
        line = self._receive()
        if line.id != self._number:
            raise ControlError("the volunteer answered another request")
        return _decoded(kind, line.result)

    def _receive(self) -> _Line:
        """Return the next line.

        Raises:
            ControlError: none comes in time, the connection ended, the line is malformed, or it is
                a refusal.
        """
        deadline = time.monotonic() + self._timeout_s
        while b"\n" not in self._buffer:
            left_s = max(0.0, deadline - time.monotonic())  # else a slow line could last for ever
            try:
                ready, _, _ = select.select([self._socket], [], [], left_s)
                if self._socket not in ready:
                    raise self._no_answer()
                chunk = self._socket.recv(256 * 1024)
            except (OSError, ValueError) as error:
                raise self._ended() from error
            if not chunk:
                raise self._ended()
            self._buffer += chunk
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ControlError("the volunteer sent an answer that is too long")
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        try:
            found = _lines.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ControlError(f"the volunteer sent something unexpected: {error}") from error
        if found.error is not None:
            raise _refused(found.error)
        return found

    def _no_answer(self) -> NoAnswer:
        return NoAnswer(f"the volunteer at {self._path} does not answer")

    def _ended(self) -> NotRunning:
        return NotRunning(f"the volunteer at {self._path} has ended")


def _asking(name: str, declared: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of ``ControlClient`` that calls a method of the node."""
    signature, kind = inspect.signature(declared), METHODS[name].answer

    @functools.wraps(declared)
    def ask(client: ControlClient, *args: object, **named: object) -> object:
        _, *given = signature.bind(client, *args, **named).arguments.items()
        return client.call(name, kind, **dict(given))

    return ask


for _name in METHODS:
    setattr(ControlClient, _name, _asking(_name, getattr(ControlApi, _name)))


def _decoded(kind: type[Answered], raw: msgspec.Raw) -> Answered:
    try:
        return json_decoder(kind).decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ControlError(f"the volunteer's answer is malformed: {error}", RESTART) from error


def _refused(error: _Refusal) -> ControlError:
    if error.code == rpc.METHOD_NOT_FOUND:
        return ControlError(error.message, RESTART)
    if error.code == rpc.IMPOSSIBLE:
        return ControlError(error.message, "")
    return ControlError(error.message)


def running_nodes(folder: Path) -> list[tuple[Path, Snapshot]]:
    """Return the sockets of nodes that answer, each with its status."""
    found = []
    for path in live_sockets(folder):
        try:
            with ControlClient(path, timeout_s=2.0) as client:
                found.append((path, client.greeting))
        except ControlError:
            continue  # it stopped meanwhile, or is another version's
    return found
