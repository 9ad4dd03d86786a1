"""A rank on another host: the volunteer's end of its connection, and the other host's.

Frames are those between a node and its worker, without shared memory. The other host takes requests
out of them and gives them to a worker process of its own; the answers go back. What names something
of one host is replaced there: the interface that leads to the others, and the port of the store.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from client.compute.errors import FrameError
from client.compute.frame_stream import FrameReader, Stream
from client.compute.frames import pack, payload_views
from client.compute.hosts.link import Link, LinkBroken
from client.compute.payload import Buffer
from client.compute.process import (
    FramedWorker,
    RequestFailed,
    Submitted,
    Worker,
    WorkerDied,
    open_worker,
)
from client.compute.replies import Failed, Reply
from client.compute.requests import AnyRequest, JoinGroup, LoadStart, OpenStage

_DEATH = -1
"""Number of the frame that tells of a death: no request has it."""

_requests = msgspec.msgpack.Decoder(AnyRequest)


class RankDied(Struct, frozen=True, kw_only=True):
    """The process of a rank is gone; see `WorkerDied`."""

    exit_code: int
    words: list[str]


_deaths = msgspec.msgpack.Decoder(RankDied)


class RemoteRank(FramedWorker):
    """A worker process on another host.

    Args:
        host: its name.
        connected: has the rank started, and returns the connection.
    """

    def __init__(self, host: str, connected: Callable[[], Awaitable[Link]]) -> None:
        super().__init__(None, None)
        self._host, self._connected = host, connected
        self._told: WorkerDied | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """None: it is on another host."""
        return ()

    def close(self) -> None:
        """Close the connection; the other host then ends the process."""
        self._talking.cancel()

    async def run(self) -> None:
        """Talk to the rank until it, or its host, dies or `close` is called."""
        link: Link | None = None
        words = f"the connection to {self._host} is gone"
        try:
            with self._talking:
                link = await self._connected()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._until_broken, self._send_frames, link)
                    nursery.start_soon(self._until_broken, self._receive_frames, link)
        except LinkBroken as error:
            words = f"{self._host}: {error}"
        finally:
            if link is not None:
                with trio.CancelScope(shield=True):
                    await link.aclose()
            self._die(self._told or WorkerDied(-signal.SIGKILL, (words,)))

    def _answer(self, call_id: int, message: bytes, payloads: list[bytes]) -> None:
        if call_id != _DEATH:
            super()._answer(call_id, message, payloads)
            return
        try:
            death = _deaths.decode(message)
            self._told = WorkerDied(death.exit_code, death.words)
        except (msgspec.DecodeError, ValueError) as error:  # no signal has that number
            raise FrameError(f"no death: {error}") from error
        raise trio.EndOfChannel

    async def _until_broken(self, talk: Callable[[Stream], Awaitable[None]], link: Link) -> None:
        try:
            await talk(link)
        except FrameError as error:
            self._told = WorkerDied(-signal.SIGKILL, (f"{self._host}: {error}",))
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel):
            pass
        self._talking.cancel()


class ServedRank:
    """A rank of this host, on behalf of the first host; runs until either end is gone.

    Args:
        link: the connection of the rank.
        open_store: makes a store of the first host, by its port there, reachable on a port of this
            host's loopback, until the nursery is cancelled.
    """

    def __init__(self, link: Link, open_store: Callable[[int, trio.Nursery], Awaitable[int]]):
        self._link, self._open_store = link, open_store
        self._sending = trio.Lock()

    async def run(self) -> None:
        """Serve requests; the first host is told if the process cannot be started."""
        try:
            await self._run()
        except OSError as error:
            words = f"no process can be started: {error}"
            await self._send(_DEATH, RankDied(exit_code=1, words=[words]), ())

    async def _run(self) -> None:
        async with open_worker() as worker, trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_death, worker, nursery)
            try:
                await self._serve(worker, nursery)
            except (FrameError, trio.BrokenResourceError, trio.EndOfChannel):
                nursery.cancel_scope.cancel()
            except WorkerDied:
                await trio.sleep_forever()  # the first host is being told

    async def _serve(self, worker: Worker, nursery: trio.Nursery) -> None:
        reader = FrameReader(self._link)
        while True:
            _, envelope, inline = await reader.read()
            payloads = payload_views(envelope, inline, None)
            try:
                request = _requests.decode(envelope.message)
            except msgspec.DecodeError as error:
                raise FrameError(f"no request: {error}") from error
            if isinstance(request, JoinGroup) and request.store_port:
                port = await self._open_store(request.store_port, nursery)
                request = replace(request, store_port=port, interface=self._link.interface)
            if missing := _missing(request):
                await self._send(envelope.id, missing, ())
                continue
            answer = partial(self._answer, envelope.id, worker.submit(request, payloads))
            nursery.start_soon(answer)

    async def _answer(self, call_id: int, submitted: Submitted[Reply]) -> None:
        reply: Reply
        payloads: list[bytes] = []
        try:
            reply, payloads = await submitted.wait()
        except RequestFailed as failure:
            reply = Failed(
                kind=failure.kind,
                message=failure.message,
                part=failure.part,
                parts=failure.parts,
            )
        except WorkerDied:
            return
        await self._send(call_id, reply, payloads)

    async def _tell_death(self, worker: Worker, nursery: trio.Nursery) -> None:
        death = await worker.wait_death()
        told = RankDied(exit_code=death.exit_code, words=list(death.stderr))
        await self._send(_DEATH, told, ())
        nursery.cancel_scope.cancel()

    async def _send(self, call_id: int, message: Struct, payloads: list[bytes] | tuple[()]) -> None:
        buffers: list[Buffer] = pack(call_id, message, payloads, None, 0)
        async with self._sending:
            try:
                for buffer in buffers:
                    await self._link.send_all(memoryview(buffer))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # whoever reads sees it, too


def _missing(request: AnyRequest) -> Failed | None:
    """Return which file of the first host is not seen here; None: there is no such."""
    path = ""
    match request:
        case OpenStage():
            path = request.corpus
        case LoadStart():
            path = request.path
    if path and not Path(path).exists():
        words = (
            f"{socket.gethostname()} does not see {path}: the hosts of a job need one "
            "folder that all of them see, in VOLUNTEER_HOME or --data-dir"
        )
        return Failed(kind="shape", message=words)
    return None
