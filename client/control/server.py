"""The control server: a Unix socket on which local programs query a node.

It holds the listening socket and no state of the node. Bounds: connections, bytes per request,
seconds per request and per answer; so a stuck local program costs a slot and never time of the
node. A connection beyond the bound takes the place of the one that has been quiet for longest, so
forgotten ones never keep the owner out. Who can open the socket may do everything: its permissions
(0600 in a 0700 folder) let in the owner and root.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from client.control import methods, rpc
from client.control.methods import ControlApi
from client.control.sockets import remove_stale

LOOK_S = 5.0
"""Time between looks whether somebody has removed the socket's file or folder; both are made
again."""
MAX_CONNECTIONS = 16
PATIENCE_S = 300.0
"""For the next whole request, and for taking an answer."""


@asynccontextmanager
async def serve_control(path: Path, node: ControlApi) -> AsyncIterator[None]:
    """Serve the control interface at ``path`` while the block runs.

    Args:
        path: in a folder that nobody else can enter.
        node: what is asked.

    Raises:
        UserError: another node listens on ``path``, or something else is there.
    """
    remove_stale(path)
    listener = await _listen(path)
    server = _Server(node)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.accept, path, listener)
            yield
            nursery.cancel_scope.cancel()
    finally:
        path.unlink(missing_ok=True)


async def _listen(path: Path) -> trio.socket.SocketType:
    """Bind with mode 0600 from the first moment on, not a moment later."""
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        await listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(16)
    return listener


class _Server:
    """Counts connections; each is served by its own task."""

    def __init__(self, node: ControlApi) -> None:
        self._node = node
        self._open: list[_Conversation] = []

    async def accept(self, path: Path, listener: trio.socket.SocketType) -> None:
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        if not path.exists():
                            listener.close()
                            path.parent.mkdir(mode=0o700, exist_ok=True)
                            listener = await _listen(path)
                        with trio.move_on_after(LOOK_S):
                            connection, _ = await listener.accept()
                            nursery.start_soon(self._serve, trio.SocketStream(connection))
                    except OSError:  # out of descriptors, or the client left: the node goes on
                        await trio.sleep(0.1)
        finally:
            listener.close()

    def _make_room(self) -> None:
        """Close the connection that has been quiet for longest, if there are too many."""
        going = [each for each in self._open if not each.life.cancel_called]
        if len(going) >= MAX_CONNECTIONS:
            min(going, key=lambda each: each.heard).life.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        self._make_room()
        conversation = _Conversation(stream, self._node)
        self._open.append(conversation)
        gone = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError)
        try:
            async with stream:
                with conversation.life:
                    await conversation.run()
        except gone:
            pass  # the client left or is stuck; nothing of the node depends on it
        finally:
            self._open.remove(conversation)


class _Conversation:
    """One connection: requests are answered in order."""

    def __init__(self, stream: trio.SocketStream, node: ControlApi) -> None:
        self.stream, self._node = stream, node
        self._buffer = bytearray()
        self.life = trio.CancelScope()
        self.heard = trio.current_time()
        """When the client last asked something."""

    async def run(self) -> None:
        """Converse until the client leaves or breaks a bound."""
        while True:
            try:
                line = await self._read_line()
            except rpc.RpcError as error:
                await self._write(rpc.encode_error(error))
                return
            if line is None:
                return
            self.heard = trio.current_time()
            if line.strip():
                await self._write(methods.answer(line, self._node))

    async def _write(self, answer: bytes) -> None:
        with trio.fail_after(PATIENCE_S):
            await self.stream.send_all(answer)

    async def _read_line(self) -> bytes | None:
        """Return the next line without its newline, None at the end of the stream.

        Raises:
            RpcError: the line is longer than allowed (the rest of the stream is not read).
            trio.TooSlowError: the client does not finish its line.
        """
        with trio.fail_after(PATIENCE_S):
            while b"\n" not in self._buffer[: rpc.MAX_REQUEST_BYTES + 1]:
                if len(self._buffer) > rpc.MAX_REQUEST_BYTES:
                    words = f"a request may have {rpc.MAX_REQUEST_BYTES} bytes"
                    raise rpc.RpcError(rpc.TOO_LARGE, words)
                chunk = await self.stream.receive_some(16 * 1024)
                if not chunk:
                    return None
                self._buffer += chunk
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line
