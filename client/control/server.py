"""The control server: a Unix socket on which local programs query a node.

It holds the listening socket and no state of the node. Bounds: connections of each user, bytes per
request, seconds per request and per answer; so a hostile or stuck local program costs a slot and
never time of the node. A connection beyond its user's bound takes the place of the one that has
been quiet for longest, so forgotten ones never keep their user out, nor do those of another user.
Access is controlled by file permissions (0600 in a 0700 folder; with a group 0660 in 0750), and the
rights of a connection depend on the user at its other end.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from client.control import methods, rpc
from client.control.feed import Feed, Subscriber
from client.control.methods import Caller, ControlApi
from client.control.sockets import may_write, peer_uid, prepare_folder, remove_stale


@dataclass(frozen=True)
class ServerLimits:
    """Bounds on the resources of local programs."""

    connections: int = 16
    """Connections of one user."""
    request_bytes: int = rpc.MAX_REQUEST_BYTES
    request_timeout_s: float = 10.0
    """From the first byte of a request to its newline."""
    idle_timeout_s: float = 300.0
    """Between requests; an interface that polls every second stays connected."""
    write_timeout_s: float = 5.0
    stalled_timeout_s: float = 900.0
    """Seconds for which a subscribed front end may stop reading before its slot is taken."""


@asynccontextmanager
async def serve_control(
    path: Path,
    node: ControlApi,
    limits: ServerLimits | None = None,
    group: int | None = None,
) -> AsyncIterator[None]:
    """Serve the control interface at ``path`` while the block runs.

    Args:
        group: a group whose members may query the node, too.
        node: what is asked.
        limits: bounds on local programs; None: the defaults.

    Raises:
        SocketFolderError: the folder is open to others, or another node listens on ``path``.
    """
    prepare_folder(path.parent, group)
    remove_stale(path)
    listener = await _listen(path, group)
    server = _Server(node, limits or ServerLimits())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.accept, listener)
            yield
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
        path.unlink(missing_ok=True)


async def _listen(path: Path, group: int | None) -> trio.socket.SocketType:
    """Bind with mode 0600 from the first moment on, not a moment later."""
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        await listener.bind(str(path))
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o660)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(16)
    return listener


class _Server:
    """Counts connections; each is served by its own task."""

    def __init__(self, node: ControlApi, limits: ServerLimits) -> None:
        self._node = node
        self._feed = Feed(node)
        self._limits = limits
        self._open: dict[int | None, list[_Conversation]] = {}
        """By user; None: those whom the system does not name."""

    async def accept(self, listener: trio.socket.SocketType) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await listener.accept()
                except OSError:  # out of descriptors, or the client left: the node goes on
                    await trio.sleep(0.1)
                    continue
                stream, user = trio.SocketStream(connection), peer_uid(connection)
                caller = Caller(may_write=may_write(user))
                conversation = _Conversation(stream, caller, self._node, self._limits)
                self._make_room(user)
                self._open.setdefault(user, []).append(conversation)
                nursery.start_soon(self._serve, stream, conversation, user)

    def _make_room(self, user: int | None) -> None:
        """Close a user's connection that has been quiet for longest, if there are too many."""
        own = [each for each in self._open.get(user, []) if not each.ended]
        if len(own) >= self._limits.connections:
            min(own, key=lambda each: each.heard).end()

    async def _serve(
        self, stream: trio.SocketStream, conversation: _Conversation, user: int | None
    ) -> None:
        gone = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError)
        try:
            async with stream:
                await conversation.run(Subscriber(conversation.caller, self._feed))
        except* gone:
            pass  # the client left or is stuck; nothing of the node depends on it
        finally:
            self._open[user].remove(conversation)
            if not self._open[user]:
                del self._open[user]


class _Conversation:
    """One connection: requests are answered in order, updates come between the answers."""

    def __init__(
        self,
        stream: trio.SocketStream,
        caller: Caller,
        node: ControlApi,
        limits: ServerLimits,
    ) -> None:
        self._stream, self.caller = stream, caller
        self._node, self._limits = node, limits
        self._writing = trio.Lock()
        self._subscribed = trio.Event()
        self._life = trio.CancelScope()
        self.heard = trio.current_time()
        """When the client last asked something, or took an update."""

    @property
    def ended(self) -> bool:
        """Whether it was told to end."""
        return self._life.cancel_called

    def end(self) -> None:
        """Tell the connection to end."""
        self._life.cancel()

    async def run(self, subscriber: Subscriber) -> None:
        """Converse until the client leaves or breaks a bound."""
        with self._life:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_updates, subscriber)
                await self._answer_requests()
                nursery.cancel_scope.cancel()

    async def _answer_requests(self) -> None:
        reader = _LineReader(self._stream, self._limits, lambda: self._subscribed.is_set())
        while True:
            try:
                line = await reader.read_line()
            except rpc.RpcError as error:
                await self._write(rpc.encode_error(error), self._write_timeout_s)
                return
            if line is None:
                return
            self.heard = trio.current_time()
            if line.strip():
                answer = methods.answer(line, self._node, self.caller)
                await self._write(answer, self._write_timeout_s)
            if self.caller.subscription is not None:
                self._subscribed.set()

    async def _send_updates(self, subscriber: Subscriber) -> None:
        await self._subscribed.wait()
        while True:
            await subscriber.wait_due()
            async with self._writing:
                with trio.fail_after(self._limits.stalled_timeout_s):
                    await self._stream.wait_send_all_might_not_block()
                    await self._stream.send_all(self._made(subscriber))
            self.heard = trio.current_time()

    def _made(self, subscriber: Subscriber) -> bytes:
        try:
            return subscriber.encode()
        except Exception as error:  # a fault in describing the node must not end the node
            words = f"{type(error).__name__}: {error}"
            return rpc.encode_error(rpc.RpcError(rpc.INTERNAL_ERROR, words))

    @property
    def _write_timeout_s(self) -> float:
        """Give a subscriber more time to read, because an update may be half sent."""
        subscribed = self._subscribed.is_set()
        return self._limits.stalled_timeout_s if subscribed else self._limits.write_timeout_s

    async def _write(self, answer: bytes, timeout_s: float) -> None:
        with trio.fail_after(timeout_s):
            async with self._writing:
                await self._stream.send_all(answer)


class _LineReader:
    """Splits a byte stream into lines of bounded size and bounded duration."""

    def __init__(
        self, stream: trio.SocketStream, limits: ServerLimits, listening: Callable[[], bool]
    ) -> None:
        self._stream, self._limits = stream, limits
        self._listening = listening  # then the client may stay silent
        self._buffer = bytearray()

    async def read_line(self) -> bytes | None:
        """Return the next line without its newline, None at the end of the stream.

        Raises:
            RpcError: the line is longer than allowed (the rest of the stream is not read).
            trio.TooSlowError: the client does not finish its line, or says nothing for long.
        """
        if not self._buffer:
            with trio.fail_after(math.inf if self._listening() else self._limits.idle_timeout_s):
                if not await self._receive():
                    return None
        with trio.fail_after(self._limits.request_timeout_s):
            while b"\n" not in self._buffer:
                self._check_size(len(self._buffer))
                if not await self._receive():
                    return None
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._check_size(len(line))
        self._buffer[:] = rest
        return line

    async def _receive(self) -> bool:
        chunk = await self._stream.receive_some(16 * 1024)
        self._buffer += chunk
        return bool(chunk)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._limits.request_bytes:
            words = f"a request may have {self._limits.request_bytes} bytes"
            raise rpc.RpcError(rpc.TOO_LARGE, words)
