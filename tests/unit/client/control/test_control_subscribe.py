"""Updates over a real socket: latest only, bounded, harmless to the node whatever readers do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import trio

from client.control import rpc
from client.control.client import ControlClient, NotRunning
from client.control.methods import MAX_EVENTS_PER_ANSWER
from client.control.server import ServerLimits, serve_control
from client.control.sockets import socket_path
from client.control.updates import Update
from tests.support.control_fakes import FakeProvider

CYCLES = 1000


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:  # a socket's path must be short
        yield socket_path(Path(name), "ab" * 32, "12D3KooWabcdefgh")


class CountingProvider(FakeProvider):
    """Counts how often it was asked to describe itself."""

    asked = 0

    def status(self):  # type: ignore[no-untyped-def]
        self.asked += 1
        return super().status()


async def _subscribed(path: Path, **params: object) -> trio.SocketStream:
    stream = await trio.open_unix_socket(path)
    await stream.send_all(rpc.encode_request("subscribe", params, 1))
    return stream


async def _lines(stream: trio.SocketStream, count: int) -> list[dict[str, Any]]:
    """Return the next ``count`` lines; later ones are lost."""
    buffer = b""
    with trio.fail_after(30):
        while buffer.count(b"\n") < count:
            chunk = await stream.receive_some(1 << 20)
            if not chunk:
                raise EOFError(buffer)
            buffer += chunk
    return [msgspec.json.decode(line) for line in buffer.split(b"\n")[:count]]


async def test_updates_follow_with_each_event_once(path: Path) -> None:
    provider = FakeProvider(event_count=MAX_EVENTS_PER_ANSWER + 3)
    async with serve_control(path, provider), await _subscribed(path) as stream:
        answer, *notes = await _lines(stream, 4)
    assert answer["result"] == {"subscribed": True}
    assert {note["method"] for note in notes} == {"update"}
    updates = [msgspec.convert(note["params"], Update) for note in notes]
    seen = [event.seq for update in updates for event in update.events]
    assert seen == list(range(1, MAX_EVENTS_PER_ANSWER + 4))
    assert [update.missed for update in updates] == [0, 0, 0]
    assert all(update.snapshot.matches is not None for update in updates)


async def test_events_that_are_forgotten_are_counted(path: Path) -> None:
    provider = FakeProvider(event_count=9)
    del provider._events[:4]
    async with serve_control(path, provider), await _subscribed(path, events_since=1) as stream:
        _, note = await _lines(stream, 2)
    update = msgspec.convert(note["params"], Update)
    assert (update.missed, [event.seq for event in update.events]) == (3, [5, 6, 7, 8, 9])


async def test_requests_are_answered_beside_updates(path: Path) -> None:
    def ask() -> None:
        with ControlClient(path) as listener, ControlClient(path) as client:
            listener.subscribe()
            assert listener.next_update(10.0) is not None
            assert [point.step for point in client.history(2).points] == [2, 3]
            paused = client.pause(until=2e9, reason="a game")
            assert (paused.reason, paused.until) == ("a game", 2e9)
            now = listener.next_update(10.0)
            assert now is not None
            assert now.snapshot.paused is not None
            assert client.resume()
            assert not client.resume()

    async with serve_control(path, FakeProvider()):
        await trio.to_thread.run_sync(ask)


async def test_who_does_not_read_is_given_nothing_to_queue(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Nothing is made while the socket is full."""
    provider = CountingProvider(event_count=200, event_size_bytes=5000)
    async with serve_control(path, provider, ServerLimits(patience_s=1e6)):
        stream = await _subscribed(path)
        await trio.sleep(60.0)
        full = provider.asked
        await trio.sleep(3600.0)
        assert provider.asked <= full + 1
        async with stream:
            assert len(await _lines(stream, 3)) == 3


async def test_who_never_reads_is_dropped_in_the_end(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    provider = FakeProvider(event_count=200, event_size_bytes=5000)
    async with serve_control(path, provider, ServerLimits(connections=1)):
        stuck = await _subscribed(path)
        await trio.sleep(2000.0)
        async with await _subscribed(path) as other:  # the only slot is free again
            assert len(await _lines(other, 2)) == 2
        await stuck.aclose()


async def test_a_thousand_attachments_leave_nothing_behind(path: Path) -> None:
    me = psutil.Process()

    def cycle(times: int) -> None:
        for _ in range(times):
            with ControlClient(path) as client:
                client.subscribe()

    async with serve_control(path, FakeProvider(), ServerLimits(connections=64)):
        await trio.to_thread.run_sync(cycle, 100)
        await trio.testing.wait_all_tasks_blocked(0.05)
        descriptors, rss = me.num_fds(), me.memory_info().rss
        await trio.to_thread.run_sync(cycle, CYCLES)
        with trio.fail_after(10):
            while me.num_fds() > descriptors:
                await trio.sleep(0.05)
        assert me.memory_info().rss - rss < 4 * 2**20


async def test_the_end_of_the_node_ends_the_updates(path: Path) -> None:
    async with serve_control(path, FakeProvider()):
        client = await trio.to_thread.run_sync(ControlClient, path)
        await trio.to_thread.run_sync(client.subscribe)
        assert await trio.to_thread.run_sync(client.next_update, 10.0)

    def read_on() -> None:
        while True:
            client.next_update(10.0)

    with client, pytest.raises(NotRunning):
        await trio.to_thread.run_sync(read_on)
