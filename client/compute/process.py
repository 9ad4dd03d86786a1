"""The node's side of a compute worker: starts it, sends requests, and detects its death. No torch.

State: the child process, the calls that wait for their reply, and the queue of frames to send.
Calls may overlap; the worker executes them in the order in which they were made. When the worker
dies, every waiting call and every later one raises `WorkerDied`; starting another worker is the
owner's decision. Nothing here blocks the event loop longer than copying one payload.
"""

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast, overload

import trio

from client.compute.errors import ComputeError, FrameError
from client.compute.frames import ANSWERS, HEADER, pack, unpack
from client.compute.payload import Buffer
from client.compute.requests import Answer, Failed, ReplyT, Request
from protocol.pipeline.effects import Outcome, Task

# Keep glibc from returning every large tensor's pages to the kernel and faulting them in again:
# measured 10 % of the worker's time. Other allocators ignore this; the user's settings win.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
# Threads that wait for work sleep instead of spinning. A spinning thread takes a core from the node
# and from other volunteers; when it waited for a thread without a core, a step took ten times the
# processor time. The user's settings win.
OMP_ENV = {"OMP_WAIT_POLICY": "passive"}
# An operation that torch has not written for Apple's GPUs yet runs on the processor.
MPS_ENV = {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}
WORKER_COMMAND: Sequence[str] = (sys.executable, "-m", "client.compute.worker")
_READ_BYTES = 1 << 18  # at once; about what a socket holds
_CLOSE_GRACE_S = 2.0  # a save under way may finish
_STDERR_GRACE_S = 1.0
_POLL_S = 0.01
_STDERR_LINES, _STDERR_BYTES = 20, 16_384

AnswerT = TypeVar("AnswerT", bound=Answer)


class WorkerDied(Exception):
    """The worker process is gone; its state is lost.

    `exit_code` is negative for a signal, as in `subprocess`; `stderr` holds its last lines.
    """

    def __init__(self, exit_code: int, stderr: Sequence[str]) -> None:
        self.exit_code = exit_code
        self.stderr = tuple(stderr)
        how = f"by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"with {exit_code}"
        super().__init__("\n".join([f"compute worker ended {how}", *self.stderr]))


class RequestFailed(ComputeError, kind="internal"):
    """The worker answered `Failed`; it lives, and the request changed nothing."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"{failed.kind}: {failed.message}", failed.part)
        self.kind, self.message = failed.kind, failed.message


def _spawn(command: Sequence[str], connection: int, stderr: int) -> subprocess.Popen[bytes]:
    numbers = ["--fd", connection, "--parent", os.getpid()]
    return subprocess.Popen(
        [*command, *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=stderr,
        stderr=stderr,
        pass_fds=(connection,),
        env={**ALLOCATOR, **OMP_ENV, **MPS_ENV, **os.environ},
    )


@dataclass(eq=False, slots=True)
class Call(Generic[AnswerT]):
    """A request on its way to the worker."""

    id: int
    request: Request[Any] | Task
    payloads: Sequence[Buffer]
    done: trio.Event = field(default_factory=trio.Event)
    answer: tuple[Answer, list[bytes]] | WorkerDied | None = None
    """The reply and its payloads, or why there will be none."""
    abandoned: bool = False

    async def wait(self, within_s: float = math.inf) -> tuple[AnswerT, list[bytes]]:
        """Wait for the reply and its payloads; raises what `Worker.call` raises."""
        try:
            with trio.move_on_after(within_s):
                await self.done.wait()
        finally:
            if self.answer is None:
                self.abandoned, self.payloads = True, ()
        if self.answer is None:  # a stopped process, or a stuck driver, is as dead as a killed one
            raise WorkerDied(-signal.SIGKILL, [f"it had not answered for {within_s:.0f} s"])
        if isinstance(self.answer, WorkerDied):
            raise self.answer
        reply, payloads = self.answer
        if isinstance(reply, Failed):
            raise RequestFailed(reply)
        return cast(AnswerT, reply), payloads


class Worker:
    """A worker process. Starting it takes the seconds that importing torch takes; calls made
    meanwhile wait.

    Make it in the thread that lives as long as the node. The kernel's parent-death signal follows
    the thread that forked, not the process: a child started from a pool thread would be killed as
    soon as that thread is retired.

    ``command`` starts it, ``WORKER_COMMAND`` if empty, and gets `--fd` and `--parent` appended.
    Raises `OSError` where that fails.
    """

    def __init__(self, *, command: Sequence[str] = ()) -> None:
        self._waiting: dict[int, Call[Any]] = {}
        self._unsent, self._to_send = trio.open_memory_channel[Call[Any]](math.inf)
        self._next_id = 0
        self._death: WorkerDied | None = None
        self.gone = trio.Event()
        """Set once `run` has ended the process."""
        self._talking = trio.CancelScope()
        with ExitStack() as on_failure, ExitStack() as child_ends:
            ours, theirs = socket.socketpair()
            on_failure.callback(ours.close)
            child_ends.callback(theirs.close)
            stderr, stderr_end = os.pipe()
            on_failure.callback(os.close, stderr)
            child_ends.callback(os.close, stderr_end)
            self._process = _spawn(command or WORKER_COMMAND, theirs.fileno(), stderr_end)
            on_failure.pop_all()
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        self._output = trio.lowlevel.FdStream(stderr)
        self._said = b""
        """The end of what it has written to stderr."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def call(self, request: Request[ReplyT], within_s: float = math.inf) -> ReplyT:
        """Have a request executed that is no task, so it has no payloads; its reply. A cancelled
        call that was sent already is still executed; its reply is thrown away.

        Raises:
            RequestFailed: the worker could not do it and says why.
            WorkerDied: the worker is gone, or went before it answered; or it hangs, for it has not
                answered in time.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        reply, _ = await self.submit(request).wait(within_s)
        return reply

    @overload
    def submit(self, request: Task, payloads: Sequence[Buffer] = ()) -> Call[Outcome]: ...
    @overload
    def submit(self, request: Request[ReplyT], payloads: Sequence[Buffer] = ()) -> Call[ReplyT]: ...
    def submit(self, request: Request[Any] | Task, payloads: Sequence[Buffer] = ()) -> Call[Any]:
        """Queue a request now, wait for it later: requests run in the order of these calls. Do not
        change the payloads meanwhile.

        Raises:
            WorkerDied: the worker is gone.
        """
        if self._death is not None:
            raise self._death
        call = Call[Any](self._next_id, request, payloads)
        self._next_id += 1
        self._waiting[call.id] = call
        self._unsent.send_nowait(call)
        return call

    def close(self) -> None:
        """Close the connection to the worker; it is then ended, and waiting calls raise
        `WorkerDied`."""
        self._talking.cancel()

    async def run(self) -> None:
        """Talk to the worker until it dies or `close` is called; leaves no process behind."""
        try:
            with self._talking:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read_stderr)
                    nursery.start_soon(self._until_broken, self._send_frames)
                    nursery.start_soon(self._until_broken, self._receive_frames)
        finally:
            try:
                with trio.CancelScope(shield=True):
                    await self._clean_up()
            finally:
                self.gone.set()

    async def _clean_up(self) -> None:
        await self._stream.aclose()  # the worker ends when it sees this
        exit_code = await self._end_process()
        with trio.move_on_after(_STDERR_GRACE_S):
            await self._read_stderr()
        await self._output.aclose()
        lines = self._said.decode(errors="replace").splitlines()
        self._die(WorkerDied(exit_code, lines[-_STDERR_LINES:]))

    def _die(self, death: WorkerDied) -> None:
        self._death = death
        for call in self._waiting.values():
            call.answer = death
            call.done.set()
        self._waiting.clear()

    async def _until_broken(self, talk: Callable[[], Awaitable[None]]) -> None:
        try:
            await talk()
        except FrameError as error:
            self._said += f"\nnode: {error}".encode()
            self._process.terminate()  # it cannot be reached
        except (trio.BrokenResourceError, trio.EndOfChannel):
            pass  # the worker's exit code and stderr say more
        self._talking.cancel()

    async def _send_frames(self) -> None:
        async for call in self._to_send:
            if call.abandoned:
                del self._waiting[call.id]
            else:
                await self._send(call)

    async def _send(self, call: Call[Any]) -> None:
        buffers, call.payloads = pack(call.id, call.request, call.payloads), ()
        for buffer in buffers:
            await self._stream.send_all(memoryview(buffer))

    async def _receive_frames(self) -> None:
        while True:
            (size,) = HEADER.unpack(await self._exactly(HEADER.size))
            body = unpack(await self._exactly(size), ANSWERS)
            payloads = body.cut(memoryview(await self._exactly(sum(body.sizes))))
            self._answer(body.id, body.message, list(map(bytes, payloads)))

    async def _exactly(self, size: int) -> bytearray:
        data = bytearray()
        while missing := size - len(data):
            piece = await self._stream.receive_some(min(missing, _READ_BYTES))
            if not piece:
                raise trio.EndOfChannel
            data += piece
        return data

    def _answer(self, call_id: int, reply: Answer, payloads: list[bytes]) -> None:
        call = self._waiting.pop(call_id, None)
        if call is None:
            raise FrameError(f"worker answered a request {call_id} that nobody made")
        call.answer = (reply, payloads)
        call.done.set()

    async def _end_process(self) -> int:
        """Ask, terminate, kill; the exit code."""
        patience = ((_CLOSE_GRACE_S, self._process.terminate), (1.0, self._process.kill))
        for grace_s, end in patience:
            with trio.move_on_after(grace_s):
                await self._exit()
            if self._process.returncode is None:
                end()
        return await self._exit()

    async def _exit(self) -> int:
        while (code := self._process.poll()) is None:
            await trio.sleep(_POLL_S)
        return code

    async def _read_stderr(self) -> None:
        async for data in self._output:
            self._said = (self._said + data)[-_STDERR_BYTES:]
