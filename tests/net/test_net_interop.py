"""Our Noise, Yamux and multistream against js-libp2p, another implementation by other people, and
against py-libp2p as shipped, of which we run the handshake alone.

The peer is ``interop/peer.mjs``; its packages are pinned in ``interop/package-lock.json`` and
installed once, into ``interop/node_modules``. Without node, npm or npm's registry: skipped.
"""

import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from client.net.errors import ConnectionLost, HandshakeFailed, StreamReset
from client.net.handshake import accept_protocol, request_protocol
from client.net.host import Connection
from client.net.libp2p_patches import NOT_RUN, GuardedStream
from client.net.yamux import YamuxStream
from tests.support import loopback
from tests.support.loopback import Hosts

HERE = Path(__file__).with_name("interop")
INSTALLED = HERE / "node_modules" / ".installed"
INSTALL_S = 50.0
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ECONNRESET", "ENETUNREACH")
ECHO, RESET, PING = "/volunteer/echo/1", "/volunteer/reset/1", "/ipfs/ping/1.0.0"
MIB = 1024 * 1024
SIZE = 8 * MIB

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node() -> str:
    """Return the program that runs the peer, whose packages are there."""
    found, npm = shutil.which("node"), shutil.which("npm")
    if found is None or npm is None:
        pytest.skip("node and npm are not installed")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    if int(version.stdout[1:].split(".")[0]) < 20:
        pytest.skip(f"js-libp2p takes node 20, this is {version.stdout.strip()}")
    lock = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    if not INSTALLED.exists() or INSTALLED.read_text() != lock:
        _install(npm)
        INSTALLED.write_text(lock)
    return found


def _install(npm: str) -> None:
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0"]
    try:
        done = subprocess.run(
            command, cwd=HERE, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm ci took more than {INSTALL_S:.0f} s")
    if any(code in done.stderr for code in UNREACHABLE):
        pytest.skip("npm's registry cannot be reached")
    assert done.returncode == 0, done.stderr


class JsPeer:
    """The other process: what it says, and what it is told."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._text = b""
        self.address = ""

    async def said(self, key: str) -> dict[str, Any]:
        """Wait for the next line that has this key."""
        while True:
            while b"\n" not in self._text:
                more = await self._process.stdout.receive_some()
                assert more, "the js peer ended"
                self._text += more
            line, self._text = self._text.split(b"\n", 1)
            found: dict[str, Any] = json.loads(line)
            if key in found:
                return found
            assert "failed" not in found, found

    async def tell(self, line: str) -> None:
        await self._process.stdin.send_all(line.encode() + b"\n")


@pytest.fixture
async def js(node: str, nursery: trio.Nursery) -> AsyncIterator[JsPeer]:
    process = await nursery.start(
        lambda task_status: trio.run_process(
            [node, "peer.mjs"],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            task_status=task_status,
            check=False,
        )
    )
    peer = JsPeer(process)
    peer.address = (await peer.said("address"))["address"]
    yield peer
    process.kill()
    await process.wait()


async def request(connection: Connection, protocol: str) -> YamuxStream:
    stream = await connection.session.open_stream()
    await request_protocol(GuardedStream(stream), protocol)
    return stream


async def rest(stream: YamuxStream) -> bytes:
    data = bytearray()
    while more := await stream.receive_some():
        data += more
    return bytes(data)


@asynccontextmanager
async def dialled(hosts: Hosts, js: JsPeer) -> AsyncIterator[Connection]:
    async with hosts() as host:
        yield await loopback.dialled(host, js.address)


async def test_we_dial_and_every_byte_comes_back_after_our_half_is_closed(
    hosts: Hosts, js: JsPeer
) -> None:
    async with dialled(hosts, js) as connection, trio.open_nursery() as nursery:
        payload = os.urandom(SIZE)
        stream = await request(connection, ECHO)
        stream.let_window_grow(4 * MIB)

        async def send() -> None:
            await stream.send_all([payload[:5], payload[5:MIB], payload[MIB:]], stall_s=20)
            stream.send_eof()

        nursery.start_soon(send)
        assert await rest(stream) == payload
        assert (await js.said("echoed")) == {"echoed": SIZE}
        assert connection.session.violation is None


async def test_a_ping_comes_back_and_the_round_trip_is_measured(hosts: Hosts, js: JsPeer) -> None:
    async with dialled(hosts, js) as connection:
        stream = await request(connection, PING)
        for _ in range(3):
            data = os.urandom(32)
            await stream.send_all([data])
            echo = b""
            while len(echo) < len(data):
                echo += await stream.receive_some(len(data) - len(echo))
            assert echo == data
        before = connection.session.trip_s
        connection.session.ping()  # a ping of Yamux itself
        while connection.session.trip_s == before:
            await trio.sleep(0.01)


async def test_resets_go_both_ways_and_end_one_stream_only(hosts: Hosts, js: JsPeer) -> None:
    async with dialled(hosts, js) as connection:
        theirs = await request(connection, RESET)
        await theirs.send_all([b"!"])
        with pytest.raises(StreamReset):
            await theirs.receive_some()
        ours = await request(connection, ECHO)
        await ours.send_all([b"!"])
        assert await ours.receive_some(1) == b"!"
        ours.reset()
        assert (await js.said("failed"))["failed"] == "StreamResetError"
        with pytest.raises(HandshakeFailed):
            await request(connection, "/volunteer/unknown/1")
        last = await request(connection, ECHO)
        await last.send_all([b"still here"])
        last.send_eof()
        assert await rest(last) == b"still here"


async def serve(connection: Connection) -> None:
    """Echo, or reset, for whoever dials us."""

    async def talk(stream: YamuxStream) -> None:
        try:
            protocol = await accept_protocol(GuardedStream(stream), [ECHO, RESET])
        except HandshakeFailed:
            stream.reset()
            return
        if protocol == RESET:
            await stream.receive_some()
            stream.reset()
            return
        stream.let_window_grow(4 * MIB)
        while data := await stream.receive_some():
            await stream.send_all([data], stall_s=20)
        stream.send_eof()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    nursery.start_soon(talk, await connection.session.accept_stream())
            except ConnectionLost:
                nursery.cancel_scope.cancel()

    await connection.run(work)


async def test_we_are_dialled(hosts: Hosts, js: JsPeer) -> None:
    async with hosts(serve) as host:
        await js.tell(f"dial {host.addresses[0]} {SIZE}")
        assert await js.said("dialled") == {"dialled": SIZE, "same": True}
        await js.tell(f"reset {host.addresses[0]}")
        assert (await js.said("reset"))["reset"] == "StreamResetError"
        await js.tell(f"dial {host.addresses[0]} {SIZE}")  # the connection is as good as before
        assert await js.said("dialled") == {"dialled": SIZE, "same": True}
        assert len(host.limiter._inbound) + host.limiter.dialled == 1
        assert not host.refused


@pytest.fixture
def leaks() -> Iterator[None]:
    """Collect the sockets that the library's hosts leak here, not in somebody else's test."""
    yield
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


@pytest.mark.usefixtures("leaks")
@pytest.mark.filterwarnings("ignore")  # the library is not held to our standard of warnings
async def test_the_library_as_shipped_dials_us_and_every_byte_comes_back(hosts: Hosts) -> None:
    for name in NOT_RUN:
        package = sys.modules[name]
        package.__loader__.exec_module(package)  # type: ignore[union-attr]
    import libp2p
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from multiaddr import Multiaddr

    stock, payload = libp2p.new_host(), os.urandom(3 * MIB)
    async with hosts(serve) as host, stock.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        await stock.connect(info_from_p2p_addr(Multiaddr(host.addresses[0])))
        peer = libp2p.peer.id.ID.from_base58(host.peer_id)
        stream = await stock.new_stream(peer, [libp2p.TProtocol(ECHO)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, payload)
            received = bytearray()
            while len(received) < len(payload):
                received += await stream.read(65536)
        assert received == payload
        assert not host.refused
