"""Updates over a real socket: latest only, bounded, harmless to the node whatever readers do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import trio

from client.control import methods, rpc, sockets
from client.control.client import ControlClient, ControlError, NotRunning
from client.control.feed import MAX_EVENTS_PER_UPDATE
from client.control.methods import Caller
from client.control.server import ServerLimits, serve_control
from client.control.sockets import socket_path
from client.control.updates import Update
from tests.support.control_fakes import FakeProvider

CYCLES = 1000
STATUS_AND_FINISH = rpc.encode_request("status", {}, 1) + rpc.encode_request("finish", {}, 2)
LOOK_AND_FINISH = """
import os, socket, sys
path, group, forbidden = sys.argv[1:]
asked = sys.stdin.buffer.read()
os.setgroups([])
os.setgid(int(group))
os.setuid(54322)
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(10)
    try:
        connection.connect(path)
    except OSError:
        sys.exit(9)
    connection.sendall(asked)
    said = b""
    while said.count(b"\\n") < 2:
        said += connection.recv(65536)
sys.exit(0 if b'"result"' in said and f'"code":{forbidden}'.encode() in said else 1)
"""
"""Asks, as somebody of the group, for the state and for the end; 0: the first was answered and the
second refused; 9: nobody lets it in. A program of its own: it becomes somebody else for good."""


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:  # a socket's path must be short
        yield socket_path(Path(name) / "run", "ab" * 32, "12D3KooWabcdefgh")


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
    provider = FakeProvider(event_count=MAX_EVENTS_PER_UPDATE + 3)
    async with serve_control(path, provider), await _subscribed(path) as stream:
        answer, *notes = await _lines(stream, 4)
    assert answer["result"] == {"subscribed": True}
    assert {note["method"] for note in notes} == {"update"}
    updates = [msgspec.convert(note["params"], Update) for note in notes]
    seen = [event.seq for update in updates for event in update.events]
    assert seen == list(range(1, MAX_EVENTS_PER_UPDATE + 4))
    assert [update.missed for update in updates] == [0, 0, 0]
    assert [update.matches is not None for update in updates] == [True, False, False]


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


WATCHER = """
import sys
from pathlib import Path
from client.control.client import ControlClient
with ControlClient(Path(sys.argv[1])) as client:
    client.subscribe()
    while client.next_update(60.0):
        print("update", flush=True)
"""


async def test_a_stopped_front_end_costs_nothing_and_goes_on_when_woken(path: Path) -> None:
    provider = CountingProvider(event_count=1000, event_size_bytes=5000)
    async with serve_control(path, provider):
        command = [sys.executable, "-c", WATCHER, str(path)]
        watcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert watcher.stdout is not None
        try:
            await trio.to_thread.run_sync(watcher.stdout.readline)
            os.kill(watcher.pid, signal.SIGSTOP)
            await _quiet(provider)
            rss = psutil.Process().memory_info().rss
            async with await _subscribed(path, events_since=1000) as other:
                await _lines(other, 8)  # nobody else waits for it
            assert psutil.Process().memory_info().rss - rss < 8 * 2**20
            os.kill(watcher.pid, signal.SIGCONT)
            for _ in range(5):
                assert await trio.to_thread.run_sync(watcher.stdout.readline)
        finally:
            watcher.kill()
            watcher.wait(10)
            watcher.stdout.close()


async def _quiet(provider: CountingProvider) -> None:
    """Wait until nothing more is made."""
    with trio.fail_after(60):
        asked = -1
        while asked != provider.asked:
            asked = provider.asked
            await trio.sleep(1.0)


def test_only_the_owner_and_root_may_change_the_node() -> None:
    provider = FakeProvider()
    guest = Caller(may_write=False)
    for method in ("finish", "pause", "resume", "invite", "expel", "amend"):
        answer = msgspec.json.decode(
            methods.answer(rpc.encode_request(method, {}, 1), provider, guest)
        )
        assert answer["error"]["code"] == rpc.FORBIDDEN
    assert provider.stops == 0
    status = methods.answer(rpc.encode_request("status", {}, 1), provider, guest)
    assert "result" in msgspec.json.decode(status)
    assert sockets.may_write(os.geteuid())
    assert sockets.may_write(0)
    assert not sockets.may_write(os.geteuid() + 1)
    assert not sockets.may_write(None)


async def test_the_kernel_names_the_other_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = socket.socketpair(socket.AF_UNIX)
    assert [sockets.peer_uid(end) for end in ends] == [os.geteuid()] * 2
    for end in ends:
        end.close()
    monkeypatch.setattr("client.control.server.peer_uid", lambda connection: os.geteuid() + 1)
    provider = FakeProvider()

    def ask() -> None:
        with ControlClient(path) as client:
            assert client.status().swarm_name == "example"
            with pytest.raises(ControlError, match="only the volunteer's owner"):
                client.finish()

    async with serve_control(path, provider):
        await trio.to_thread.run_sync(ask)
    assert provider.stops == 0


async def test_a_group_may_be_let_in(path: Path) -> None:
    async with serve_control(path, FakeProvider(), group=os.getegid()):
        assert path.stat().st_mode & 0o777 == 0o660
        assert path.parent.stat().st_mode & 0o777 == 0o750
        assert path.stat().st_gid == os.getegid()


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_somebody_of_the_group_may_look_and_no_more(path: Path) -> None:
    provider, group = FakeProvider(), 54321
    path.parent.parent.chmod(0o755)

    def ask_as_member() -> int:
        command = [sys.executable, "-c", LOOK_AND_FINISH, str(path), str(group), str(rpc.FORBIDDEN)]
        asked = subprocess.run(command, input=STATUS_AND_FINISH, timeout=60, check=False)
        return asked.returncode

    async with serve_control(path, provider, group=group):
        assert await trio.to_thread.run_sync(ask_as_member) == 0
    assert provider.stops == 0
    path.parent.chmod(0o700)
    async with serve_control(path, provider):  # without a group nobody else even connects
        assert await trio.to_thread.run_sync(ask_as_member) == 9
