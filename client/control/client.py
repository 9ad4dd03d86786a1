"""The calling side of the control socket for commands: asks, and waits for the answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from client.control import rpc
from client.control.matches import MatchesSnapshot
from client.control.methods import (
    EventBatch,
    Finishing,
    Greeting,
    Pausing,
    Resuming,
    Stopping,
)
from client.control.snapshot import (
    Amended,
    InvitedMember,
    InviteView,
    Membership,
    PauseView,
    Snapshot,
)
from client.control.sockets import live_sockets
from client.control.updates import Curve, StepPoint, Subscribed, Update
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
from protocol.amendments.changes import Changes

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


class ControlClient:
    """One connection to one node; use it as a context manager.

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

    def status(self) -> Snapshot:
        """Return the node's status."""
        return self.call("status", Snapshot)

    def matches(self) -> MatchesSnapshot:
        """Return the matching."""
        return self.call("matches", MatchesSnapshot)

    def events(self, since: int = 0) -> EventBatch:
        """Return events after number ``since``, oldest first, in bounded batches."""
        return self.call("events", EventBatch, since=since)

    def stop(self) -> None:
        """Ask the node to hand off, checkpoint and exit; returns before it has."""
        self.call("stop", Stopping)

    def finish(self, *, discard: bool = False) -> Finishing:
        """As ``stop``; return the consequences for the stages that the node serves; ``discard``:
        also if a state that cannot be saved is lost."""
        return self.call("finish", Finishing, **_if_set(discard=discard))

    def history(self, points: int = 500) -> list[StepPoint]:
        """Return the loss curve since the node started, thinned to ``points``."""
        return self.curve(points).points

    def curve(self, points: int = 500) -> Curve:
        """Return the loss curve, and that of held-out text, as the node has seen them."""
        return self.call("history", Curve, points=points)

    def pause(
        self, until: float | None = None, reason: str = "", *, discard: bool = False
    ) -> PauseView:
        """Have the node give up its stages and free its memory until then (Unix s) or ``resume``;
        ``discard``: also if a state that cannot be saved is lost.

        Returns before it has.
        """
        more = _if_set(discard=discard)
        return self.call("pause", Pausing, until=until, reason=reason, **more).paused

    def resume(self) -> bool:
        """Have the node take part again; False: it was not paused."""
        return self.call("resume", Resuming).resumed

    def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
        """Return a fresh invite with members that the node can reach now; ``once``: good for one
        member only."""
        return self.call("invite", InviteView, once=once, life_s=life_s)

    def members(self) -> Membership:
        """Return who belongs to the swarm, and through whom."""
        return self.call("members", Membership)

    def expel(self, member: str, reason: str) -> InvitedMember:
        """Expel a member, named by its peer id or the end of that."""
        return self.call("expel", InvitedMember, member=member, reason=reason)

    def amend(self, changes: Changes, *, sign: bool) -> Amended:
        """Change the run as its founder, or only say what would change."""
        return self.call("amend", Amended, changes=changes, sign=sign)

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


def _if_set(**flags: bool) -> dict[str, bool]:
    """Return the flags that are set: a node of an earlier version does not know them."""
    return {name: True for name, is_set in flags.items() if is_set}


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
