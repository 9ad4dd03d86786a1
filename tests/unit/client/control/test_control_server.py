"""The control server on a real Unix socket, against clients that behave badly."""

import json
import os
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import trio

from client.control import client as control_client
from client.control import rpc, server, sockets
from client.control.client import RESTART, ControlClient, ControlError, NotRunning, running_nodes
from client.control.server import serve_control
from client.control.sockets import listening_sockets, live_sockets, socket_path
from client.errors import UserError
from tests.support.control_fakes import FakeProvider

LOG = "read the log: volunteer logs"
STATUS = rpc.encode_request("status", {}, 1)


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own folders are too deep for the path of a socket
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        yield Path(name)


@pytest.fixture
def path(folder: Path) -> Path:
    return socket_path(folder, "ab" * 32, "12D3KooWabcdefgh")


async def _connect(path: Path) -> trio.SocketStream:
    return await trio.open_unix_socket(path)


async def _read_line(stream: trio.SocketStream) -> dict[str, object]:
    buffer = b""
    with trio.fail_after(10):
        while not buffer.endswith(b"\n"):
            chunk = await stream.receive_some(65536)
            if not chunk:
                raise EOFError(buffer)
            buffer += chunk
    answer: dict[str, object] = json.loads(buffer)
    return answer


async def _ends(stream: trio.SocketStream) -> bool:
    """Wait until the server closed the connection, whichever way."""
    with trio.fail_after(10):
        try:
            while await stream.receive_some(65536):
                pass
        except trio.BrokenResourceError:
            pass
    return True


async def _refuses_more(stream: trio.SocketStream) -> None:
    """Wait, without reading, until the server has closed its end."""
    with trio.fail_after(10):
        while True:
            try:
                await stream.send_all(b"\n")
            except trio.BrokenResourceError:
                return
            await trio.sleep(0.01)


async def _still_serves(path: Path) -> None:
    async with await _connect(path) as stream:
        await stream.send_all(STATUS)
        assert (await _read_line(stream))["id"] == 1


async def test_only_the_owner_may_connect(path: Path) -> None:
    async with serve_control(path, FakeProvider()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_requests_in_pieces_and_in_one_piece(path: Path) -> None:
    async with serve_control(path, FakeProvider()), await _connect(path) as stream:
        for byte in STATUS:
            await stream.send_all(bytes([byte]))
        assert (await _read_line(stream))["id"] == 1
        await stream.send_all(STATUS + rpc.encode_request("history", {}, 2))
        with trio.fail_after(10):
            answers = b""
            while answers.count(b"\n") < 2:
                answers += await stream.receive_some(65536)
        assert [json.loads(line)["id"] for line in answers.splitlines()] == [1, 2]


async def test_garbage_is_answered_and_the_connection_goes_on(path: Path) -> None:
    async with serve_control(path, FakeProvider()), await _connect(path) as stream:
        await stream.send_all(os.urandom(64).replace(b"\n", b"") + b"\n")
        assert "error" in await _read_line(stream)
        await stream.send_all(b"\n" + STATUS)
        assert (await _read_line(stream))["id"] == 1


@pytest.mark.parametrize("newline", [b"", b"\n"])
async def test_an_oversized_request_is_refused_and_closed(path: Path, newline: bytes) -> None:
    async with serve_control(path, FakeProvider()):
        async with await _connect(path) as stream:
            await stream.send_all(b"x" * (rpc.MAX_REQUEST_BYTES + 1) + newline)
            error = (await _read_line(stream))["error"]
            assert error["code"] == rpc.TOO_LARGE
            assert await _ends(stream)
        await _still_serves(path)


async def test_half_a_line_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.05)
    async with serve_control(path, FakeProvider()):
        async with await _connect(path) as stream:
            await stream.send_all(STATUS[:10])
            assert await _ends(stream)
        await _still_serves(path)


async def test_a_client_that_does_not_read_is_dropped_and_delays_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = FakeProvider(event_count=500, event_size_bytes=10_000)
    monkeypatch.setattr(server, "PATIENCE_S", 0.2)
    async with serve_control(path, provider):
        async with await _connect(path) as stuck:
            await stuck.send_all(rpc.encode_request("update", {}, 1) * 4)
            await _still_serves(path)
            await _refuses_more(stuck)
        await _still_serves(path)


async def test_silent_connections_do_not_lock_their_user_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that has been quiet for longest makes room; the number stays bounded."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    async with serve_control(path, FakeProvider()):
        quiet, busy = await _connect(path), await _connect(path)
        for stream in (quiet, busy, busy):
            await stream.send_all(STATUS)
            await _read_line(stream)
        for _ in range(20):
            await _still_serves(path)
            await busy.send_all(STATUS)
            await _read_line(busy)
        assert await _ends(quiet)
        forgotten = [await _connect(path) for _ in range(50)]
        await _still_serves(path)
        for stream in (quiet, busy, *forgotten):
            await stream.aclose()


async def test_a_thousand_attachments_leave_nothing_behind(path: Path) -> None:
    me = psutil.Process()

    def cycle(times: int) -> None:
        for _ in range(times):
            with ControlClient(path) as client:
                client.update()

    async with serve_control(path, FakeProvider()):
        await trio.to_thread.run_sync(cycle, 100)
        await trio.testing.wait_all_tasks_blocked(0.05)
        descriptors, rss = me.num_fds(), me.memory_info().rss
        await trio.to_thread.run_sync(cycle, 1000)
        with trio.fail_after(10):
            while me.num_fds() > descriptors:
                await trio.sleep(0.05)
        assert me.memory_info().rss - rss < 4 * 2**20


async def test_a_socket_that_was_removed_is_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.01)

    async def comes_back() -> None:
        with trio.fail_after(10):
            while not path.exists():
                await trio.sleep(0.01)
        await _still_serves(path)

    async with serve_control(path, FakeProvider()):
        path.unlink()
        await comes_back()
        shutil.rmtree(path.parent)
        await comes_back()
    assert not path.exists()


async def test_a_stale_socket_is_replaced(path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()  # leaves the file, as a killed node does
    assert live_sockets(path.parent) == []
    async with serve_control(path, FakeProvider()):
        await _still_serves(path)


async def test_a_live_socket_is_not_taken_over(path: Path) -> None:
    async with serve_control(path, FakeProvider()):
        with pytest.raises(UserError, match="already listens"):
            async with serve_control(path, FakeProvider()):
                pass
        await _still_serves(path)


async def test_a_file_in_the_way_is_left_alone(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(UserError, match="no socket"):
        async with serve_control(path, FakeProvider()):
            pass
    assert path.read_text() == "mine"


async def test_what_cannot_be_bound_is_closed(folder: Path) -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match="too long") as kept:
        async with serve_control(folder / ("x" * 200), FakeProvider()):
            pass
    assert psutil.Process().num_fds() <= before, kept


def test_a_path_that_does_not_fit_says_so() -> None:
    with pytest.raises(UserError, match="longer than the 103 bytes") as caught:
        socket_path(Path("/" + "x" * 120), "ab" * 32, "peer")
    assert "VOLUNTEER_HOME" in caught.value.next_step


async def test_the_client_reads_what_the_server_says(path: Path) -> None:
    provider = FakeProvider()

    def ask() -> None:
        with ControlClient(path) as client:
            assert client.greeting.swarm_name == "example"
            assert client.status().stages[0].replicas[0].rate == 1.5
            assert [event.seq for event in client.update(since=2).events] == [3]
            matches = client.status().matches
            assert matches is not None
            assert matches.decides == [1]
            client.finish()
            with pytest.raises(ControlError, match="no method"):
                client.call("nothing", dict)
        assert [found for found, _ in running_nodes(path.parent)] == [path]

    async with serve_control(path, provider):
        await trio.to_thread.run_sync(ask)
    assert provider.stops == 1


def test_no_node_is_said_as_such(path: Path) -> None:
    with pytest.raises(NotRunning):
        ControlClient(path)
    assert running_nodes(path.parent) == []


@pytest.mark.parametrize("drips", [False, True])
def test_a_node_that_never_answers_is_given_up(path: Path, drips: bool) -> None:
    """Nor does a line hold a command up that goes on for ever, byte by byte."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen(1)

        def drip() -> None:
            with silent.accept()[0] as connection, suppress(OSError):
                while True:
                    connection.send(b"x")
                    time.sleep(0.01)

        if drips:
            threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(ControlError, match="does not answer"):
            ControlClient(path, timeout_s=0.05)


@pytest.mark.parametrize(
    ("line", "words", "next_step"),
    [
        (b"x" * 999, "sent something unexpected", LOG),
        (b"x" * 1001, "sent an answer that is too long", LOG),
        (b'{"id": 7}', "answered another request", LOG),
        (b'{"id": 1, "result": {}}', "answer is malformed", RESTART),
        (b'{"id": 1, "error": {"code": -32601, "message": "no status"}}', "no status", RESTART),
        (b'{"id": 1, "error": {"code": -32004, "message": "not now"}}', "not now", ""),
        (b'{"id": 1, "error": {"code": -32603, "message": "a bug"}}', "a bug", LOG),
        (None, "has ended", LOG),
    ],
)
def test_an_answer_that_cannot_be_used_is_an_error_with_what_to_do(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: bytes | None,
    words: str,
    next_step: str,
) -> None:
    monkeypatch.setattr(control_client, "MAX_LINE_BYTES", 1000)
    with socket.socket(socket.AF_UNIX) as babbling:
        babbling.bind(str(path))
        babbling.listen(1)

        def babble() -> None:
            with babbling.accept()[0] as connection:
                connection.recv(65536)
                if line is not None:
                    connection.sendall(line + b"\n")
                    connection.recv(65536)

        threading.Thread(target=babble, daemon=True).start()
        with pytest.raises(ControlError, match=words) as caught:
            ControlClient(path, timeout_s=5)
    assert caught.value.next_step == next_step


def test_of_the_kernels_list_only_sockets_named_like_ours_that_listen_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "unix"
    table.write_text(
        "Num RefCount Protocol Flags Type St Inode Path\n"
        "0: 2 0 00010000 0001 01 11 /run/b/abababab-abcdefgh.sock\n"
        "0: 2 0 00010000 0001 01 12 /run/a b/abababab-abcdefgh.sock\n"
        "0: 2 0 00000000 0001 03 13 /run/c/abababab-abcdefgh.sock\n"
        "0: 2 0 0001zzzz 0001 01 14 /run/d/abababab-abcdefgh.sock\n"
        "0: 2 0 00010000 0001 01 15 /run/e/abababab-abcdefgh.sock.old\n"
        "0: 2 0 00010000 0001 01 16 @f/abababab-abcdefgh.sock\n"
        "0: 2 0 -0010000 0001 01 17 /run/g/abababab-abcdefgh.sock\n"
        "0: 2 0 00010000 0001 01 18\n"
    )
    monkeypatch.setattr(sockets, "_KERNEL_LIST", table)
    found = [Path(f"/run/{name}/abababab-abcdefgh.sock") for name in ("a b", "b")]
    assert listening_sockets() == found
    monkeypatch.setattr(sockets, "MAX_LISTENING", 1)
    assert listening_sockets() == found[:1]
    monkeypatch.setattr(sockets, "_KERNEL_LIST", tmp_path / "elsewhere")
    assert listening_sockets() == []
