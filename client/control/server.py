"""The control server: a Unix socket on which local programs ask a node how it is.

Holds the listening socket and nothing of the node. Bounds: connections, bytes per request, seconds
per request and per answer; so a hostile or stuck local program costs a slot and never time of the
node. Access is by file permission (0600 in a 0700 folder).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from client.control import methods, rpc
from client.control.methods import Provider
from client.control.sockets import prepare_folder, remove_stale


@dataclass(frozen=True)
class ServerLimits:
    """Bounds on what one local program can take."""

    connections: int = 16
    request_bytes: int = rpc.MAX_REQUEST_BYTES
    request_timeout_s: float = 10.0
    """From the first byte of a request to its newline."""
    idle_timeout_s: float = 300.0
    """Between requests; an interface that polls every second stays connected."""
    write_timeout_s: float = 5.0


@asynccontextmanager
async def serve_control(
    path: Path, provider: Provider, limits: ServerLimits | None = None
) -> AsyncIterator[None]:
    """Serve the control interface at ``path`` while the block runs.

    Raises:
        SocketFolderError: the folder is open to others, or another node listens on ``path``.
    """
    prepare_folder(path.parent)
    remove_stale(path)
    listener = await _listen(path)
    server = _Server(provider, limits or ServerLimits())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.accept, listener)
            yield
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
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

    def __init__(self, provider: Provider, limits: ServerLimits) -> None:
        self._provider = provider
        self._limits = limits
        self._open = 0

    async def accept(self, listener: trio.socket.SocketType) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await listener.accept()
                except OSError:  # out of descriptors, or the client left: the node goes on
                    await trio.sleep(0.1)
                    continue
                stream = trio.SocketStream(connection)
                if self._open >= self._limits.connections:
                    await trio.aclose_forcefully(stream)
                    continue
                self._open += 1
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError):
            pass  # the client left or is stuck; nothing of the node depends on it
        finally:
            self._open -= 1

    async def _converse(self, stream: trio.SocketStream) -> None:
        reader = _LineReader(stream, self._limits)
        while True:
            try:
                line = await reader.read_line()
            except rpc.RpcError as error:
                await self._write(stream, rpc.encode_error(error))
                return
            if line is None:
                return
            if line.strip():
                await self._write(stream, methods.answer(line, self._provider))

    async def _write(self, stream: trio.SocketStream, answer: bytes) -> None:
        with trio.fail_after(self._limits.write_timeout_s):
            await stream.send_all(answer)


class _LineReader:
    """Splits a byte stream into lines of bounded size and bounded duration."""

    def __init__(self, stream: trio.SocketStream, limits: ServerLimits) -> None:
        self._stream = stream
        self._limits = limits
        self._buffer = bytearray()

    async def read_line(self) -> bytes | None:
        """Return the next line without its newline, None at the end of the stream.

        Raises:
            RpcError: the line is longer than allowed (the rest of the stream is not read).
            trio.TooSlowError: the client does not finish its line, or says nothing for long.
        """
        if not self._buffer:
            with trio.fail_after(self._limits.idle_timeout_s):
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
