"""Urgent data overtakes queued data: in memory frame by frame, and in the kernel's queue."""

import fcntl
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio
import trio.testing

from client.net.host import Connection
from client.net.secure import MAX_PLAINTEXT_BYTES, SecureChannel
from client.net.tcp import UNSENT_BYTES
from client.net.transport import Buffer
from client.net.yamux import (
    DATA,
    HEADER,
    LEAST_SLICE_BYTES,
    MOST_SLICE_BYTES,
    SLICE_S,
    SYN,
    WINDOW_UPDATE,
    YamuxSession,
    YamuxStream,
)
from tests.support.loopback import Hosts, Intrude

MIB = 1024 * 1024
SIOCOUTQNSD = 0x894B
"""Bytes in a socket's queue that TCP has not sent yet (linux/sockios.h)."""


class SlowLine:
    """A channel that takes one write whenever the test says so, and remembers the frames."""

    def __init__(self) -> None:
        self.stream = self
        self.frames: list[tuple[int, int]] = []
        """Stream and length of each data frame, in the order of writing."""
        self.others = 0
        """Writes that held no data."""
        self.unsent_bytes = UNSENT_BYTES
        """Of these, at most so many are kept behind the last write."""
        self.waiting = trio.Event()
        self._go = trio.Semaphore(0)

    async def send_all(self, messages: Iterable[Buffer]) -> None:
        data = b"".join(messages)
        _, kind, _, stream_id, length = HEADER.unpack_from(data)
        if kind == DATA:
            self.waiting.set()
            await self._go.acquire()
            self.frames.append((stream_id, length))
        else:
            self.others += 1

    async def wait_for_room(self) -> None: ...

    def keep_unsent(self, most_bytes: int) -> None:
        self.unsent_bytes = most_bytes

    def go_on(self, writes: int) -> None:
        for _ in range(writes):
            self._go.release()

    async def receive(self) -> list[bytes]:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def sending(count: int) -> AsyncIterator[tuple[SlowLine, YamuxStream, list[YamuxStream]]]:
    """Tensors on so many streams, all queued behind a frame that is being written."""
    line = SlowLine()
    session = YamuxSession(cast(SecureChannel, line), dialler=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session._write_frames)
        control = await session.open_stream(urgent=True)
        streams = [await session.open_stream() for _ in range(count)]
        for stream in streams:
            stream.on_window(64 * MIB)
            nursery.start_soon(stream.send_all, [bytes(MIB)])
        await line.waiting.wait()
        await trio.testing.wait_all_tasks_blocked()
        yield line, control, streams
        nursery.cancel_scope.cancel()
        session._close()
        line.go_on(1)  # what was begun is finished


async def test_a_control_frame_overtakes_every_queued_tensor() -> None:
    async with sending(5) as (line, control, streams), trio.open_nursery() as nursery:
        nursery.start_soon(control.send_all, [b"heartbeat"])
        await trio.testing.wait_all_tasks_blocked()
        line.go_on(9)
        await trio.testing.wait_all_tasks_blocked()
        order = [stream for stream, _ in line.frames]
        assert order[1] == control.stream_id  # after the one frame that was being written
        assert line.frames[0][1] <= MAX_PLAINTEXT_BYTES  # which was short
        assert sorted(order[2:7]) == sorted(stream.stream_id for stream in streams)  # in turn


async def test_replies_overtake_tensors_too() -> None:
    async with sending(3) as (line, control, _):
        session = cast(YamuxSession, control._session)
        for number in range(10):
            session.reply(HEADER.pack(0, WINDOW_UPDATE, 0, 1, number))
        await trio.testing.wait_all_tasks_blocked()
        assert line.others == 4  # the opening of four streams
        line.go_on(1)
        await trio.testing.wait_all_tasks_blocked()
        assert line.others == 5  # all ten in one write, before the next tensor


async def test_who_gives_up_waiting_has_sent_nothing_and_who_gives_up_later_a_whole_frame() -> None:
    async with sending(1) as (line, control, (tensor,)):
        session = cast(YamuxSession, control._session)

        async def write(number: int, urgent: bool) -> None:
            await session.write([HEADER.pack(0, DATA, 0, number, 0)], urgent=urgent)

        with trio.move_on_after(0.01):
            await write(100, urgent=True)
        async with trio.open_nursery() as nursery:
            for number, urgent in enumerate([False, False, True, True], start=101):
                nursery.start_soon(write, number, urgent)
                await trio.testing.wait_all_tasks_blocked()
            line.go_on(3)  # the tensor's frame, and the two that are urgent
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()  # 101 is being written
        line.go_on(1)
        await trio.testing.wait_all_tasks_blocked()
        ids = [stream for stream, _ in line.frames]
        assert ids == [tensor.stream_id, 103, 104, 101]
        assert not session.closed


class TimedLine(SlowLine):
    """Takes each write in the time that its rate needs."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__()
        self._bytes_per_s = bytes_per_s

    async def send_all(self, messages: Iterable[Buffer]) -> None:
        size = sum(map(len, messages))
        self.frames.append((0, size))
        await trio.sleep(size / self._bytes_per_s)

    async def opened(self, nursery: trio.Nursery) -> YamuxStream:
        session = YamuxSession(cast(SecureChannel, self), dialler=True)
        nursery.start_soon(session._write_frames)
        stream = await session.open_stream()
        stream.on_window(64 * MIB)
        return stream


@pytest.mark.parametrize(
    ("rate_bytes_per_s", "least"),
    [(1e9, MOST_SLICE_BYTES), (25e6, MAX_PLAINTEXT_BYTES), (4e6, LEAST_SLICE_BYTES)],
)
async def test_frames_are_as_long_as_the_line_is_fast(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    rate_bytes_per_s: float,
    least: int,
) -> None:
    line = TimedLine(rate_bytes_per_s)
    stream = await line.opened(nursery)
    cast(YamuxSession, stream._session)._slice_bytes = 4 * MAX_PLAINTEXT_BYTES
    await stream.send_all([bytes(16 * MIB)])
    size = line.frames[20][1]
    assert line.unsent_bytes >= size
    assert least <= size <= MOST_SLICE_BYTES
    assert size / rate_bytes_per_s <= SLICE_S


async def test_on_a_slow_line_frames_and_what_is_unsent_stay_short(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Or a heartbeat would wait for seconds where many links share an upload."""
    line = TimedLine(20e3)
    stream = await line.opened(nursery)
    for _ in range(100):
        await cast(YamuxSession, stream._session).write([b"short"], urgent=False)
    line.frames.clear()
    await stream.send_all([bytes(MIB)])
    assert {size for _, size in line.frames[:-1]} == {LEAST_SLICE_BYTES}
    assert line.unsent_bytes == LEAST_SLICE_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much is unsent")
async def test_little_waits_in_the_kernel_where_nothing_overtakes_it(
    hosts: Hosts, intrude: Intrude
) -> None:
    most, seen, done = 64 * MIB, list[int](), trio.Event()

    async def flood(connection: Connection) -> None:
        tcp = connection.session._channel.stream.stream.socket

        async def work() -> None:
            stream = await connection.session.accept_stream()
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * MIB)  # there is room for more
            await stream.send_all([bytes(most)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run, work)
            while len(seen) < 5 or not seen[-5] == seen[-1] > 0:  # until nothing moves
                await trio.sleep(0.05)
                unsent = fcntl.ioctl(tcp.fileno(), SIOCOUTQNSD, bytes(4))
                seen.append(struct.unpack("i", unsent)[0])
            done.set()
            nursery.cancel_scope.cancel()

    async with hosts(flood) as host, intrude(host.addresses[0]) as reader:  # which does not read
        await reader.send_all([HEADER.pack(0, WINDOW_UPDATE, SYN, 1, most)])
        await done.wait()
    assert max(seen) <= 2 * UNSENT_BYTES
