"""The calling side of the control socket for commands: asks, and waits for the answer."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from client.control import rpc
from client.control.methods import METHODS, OF_NODE, ControlApi, Greeting
from client.control.sockets import live_sockets
from client.control.updates import Subscribed, Update
from client.control.wire import (
    Answered,
    ErrorBody,
    Gone,
    Received,
    Wire,
    WireError,
    decode,
    decode_update,
)
from client.errors import ExitCode, UserError

MAX_WAITING = 8
"""Updates that came before an answer and are not read yet."""


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


class ControlClient(ControlApi):
    """One connection to one node; use it as a context manager. It calls the methods of the node.

    Raises:
        NotRunning: nobody listens on ``path``.
        ControlError: the node speaks another version, or does not answer within ``timeout_s``.
    """

    def __init__(self, path: Path, timeout_s: float = 5.0) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._updates: list[Update] = []
        try:
            self._wire = Wire(path, timeout_s)
        except Gone as error:
            raise NotRunning(f"no volunteer listens on {path}") from error
        try:
            self.greeting = self.call("hello", Greeting, version=rpc.API_VERSION)
        except ControlError:
            self.close()
            raise

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the node goes on."""
        self._wire.close()

    def subscribe(self, events_since: int = 0, matches: bool = False, hz: float = 2.0) -> None:
        """Have the node send updates, which ``next_update`` returns.

        Args:
            events_since: send events after this number; 0: all remembered ones.
            matches: whether updates carry the matching.
            hz: most updates per second.
        """
        self.call("subscribe", Subscribed, events_since=events_since, matches=matches, hz=hz)

    def next_update(self, timeout_s: float) -> Update | None:
        """Return the next update; None: none came in time.

        Raises:
            NotRunning: the node is gone.
            ControlError: it could not describe itself.
        """
        if self._updates:
            return self._updates.pop(0)
        with self._in_words():
            reply = self._wire.receive(max(timeout_s, 1e-3))
            if reply is not None and reply.error is not None:
                raise _refusal(reply.error)
            return decode_update(reply) if reply is not None else None

    def call(self, method: str, kind: type[Answered], **params: Any) -> Answered:
        """Call a method and return its typed result.

        Raises:
            ControlError: an error answer, a malformed answer, or none in time.
        """
        with self._in_words():
            number = self._wire.send(method, **params)
            reply = self._answer()
            if reply.error is not None:
                raise _refusal(reply.error)
            if reply.id != number:
                raise ControlError("the volunteer answered another request")
            return decode(reply, kind)

    def _answer(self) -> Received:
        """Return the next line that is no update; updates wait, the newest ``MAX_WAITING``."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() <= deadline:
            reply = self._wire.receive(self._timeout_s)
            if reply is None:
                break
            if not reply.method:
                return reply
            self._updates = [*self._updates, decode_update(reply)][-MAX_WAITING:]
        raise NoAnswer(f"the volunteer at {self._path} does not answer")

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        """Turn errors of the connection into ones that say what to do."""
        try:
            yield
        except Gone as error:
            raise NotRunning(f"the volunteer at {self._path} has ended") from error
        except WireError as error:
            raise ControlError(str(error)) from error


def _asking(name: str, declared: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of ``ControlClient`` that calls a method of the node."""
    signature, kind = inspect.signature(declared), METHODS[name].answer

    @functools.wraps(declared)
    def ask(client: ControlClient, *args: object, **named: object) -> object:
        _, *given = signature.bind(client, *args, **named).arguments.items()
        return client.call(name, kind, **dict(given))

    return ask


for _name in OF_NODE:
    setattr(ControlClient, _name, _asking(_name, getattr(ControlApi, _name)))


def _refusal(error: ErrorBody) -> ControlError:
    if error.code == rpc.FORBIDDEN:
        refused = ControlError(error.message, "ask its owner, or use sudo")
        refused.exit_code = ExitCode.REFUSED
        return refused
    if error.code in (rpc.METHOD_NOT_FOUND, rpc.WRONG_VERSION):
        return ControlError(
            error.message,
            "it runs another version: restart it with volunteer finish, then volunteer join",
        )
    if error.code == rpc.IMPOSSIBLE:
        return ControlError(error.message, "")
    return ControlError(error.message)


def running_nodes(folder: Path) -> list[tuple[Path, Greeting]]:
    """Return the sockets of nodes that answer, with their status."""
    found = []
    for path in live_sockets(folder):
        try:
            with ControlClient(path, timeout_s=2.0) as client:
                found.append((path, client.greeting))
        except ControlError:
            continue  # it stopped meanwhile, or is another version's
    return found
