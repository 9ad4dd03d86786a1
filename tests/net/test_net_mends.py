"""The mends one by one, and our own Noise and Yamux against the library's.

A mend is tested from both sides: the library as shipped fails in the way that `mends.py` names, and
the mended thing does not. A new version of the library that no longer fails shows up here.
"""

import gc
import os
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import multiaddr
import pytest
import trio

from client.net.errors import ConnectionLost, HandshakeFailed
from client.net.handshake import MAX_PROPOSALS, MAX_TOKEN_BYTES, MULTISTREAM, accept_protocol
from client.net.host import Connection
from client.net.libp2p_patches import NOT_RUN, GuardedStream
from client.net.relay.exchange import negotiable
from client.net.yamux import YamuxStream
from tests.support.loopback import Hosts

# isort: split
# After mends, which imports the library quietly.
import libp2p
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.exceptions import IOException
from libp2p.peer.peerinfo import info_from_p2p_addr

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in NOT_RUN:  # the library as shipped
        package = sys.modules[name]
        package.__loader__.exec_module(package)

PROTOCOL = "/volunteer/test/1"
# The library's own code is not held to our standard of warnings.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def stream_of(
    data: bytes, budget_bytes: int = 10**6, sent: list[bytes] | None = None
) -> GuardedStream:
    """A stream that brings these bytes, and notes what is sent."""
    rest, noted = bytearray(data), list[bytes]() if sent is None else sent

    async def receive(most: int) -> bytes:
        taken = bytes(rest[:most])
        del rest[:most]
        return taken

    async def send(data: bytes) -> None:
        noted.append(data)

    return GuardedStream(receive, send, budget_bytes)


HEADER = b"\x13" + MULTISTREAM.encode() + b"\n"
BAD_TOKENS = {
    "not UTF-8 (fault 1)": b"\x05\xff\xfe\xfd\xfc\n",
    "without line feed": b"\x05abcde",
    "empty": b"\x00",
    "huge (fault 6)": b"\x80\x80\x80\x80\x10" + b"x" * 10000,
    "endless length": b"\xff" * 30,
    "one byte too long": b"\x81\x08" + b"x" * MAX_TOKEN_BYTES + b"\n",
    "truncated": b"\x05ab",
    "nothing": b"",
}


@pytest.mark.parametrize("data", BAD_TOKENS.values(), ids=BAD_TOKENS.keys())
async def test_a_bad_token_ends_the_agreement_and_is_not_read_to_its_end(data: bytes) -> None:
    stream = stream_of(HEADER + data)
    with pytest.raises(HandshakeFailed):
        await accept_protocol(stream, [PROTOCOL])
    assert stream._budget_bytes > 10**6 - 100


async def test_who_proposes_protocols_without_end_is_not_answered_for_long() -> None:
    answers = list[bytes]()
    with pytest.raises(HandshakeFailed, match="too many were proposed"):
        await accept_protocol(stream_of(HEADER + b"\x02x\n" * 10_000, sent=answers), [PROTOCOL])
    assert answers == [HEADER, *[b"\x03na\n"] * MAX_PROPOSALS]


async def test_the_budget_of_a_handshake() -> None:
    stream = stream_of(b"x" * 100, budget_bytes=10)
    assert await stream.read(8) == b"x" * 8
    with pytest.raises(IOException, match="more bytes than a handshake needs"):
        await stream.read(8)
    with pytest.raises(IOException):
        await stream.read(None)


@asynccontextmanager
async def stock_host() -> AsyncIterator[Any]:
    """A host of the library as shipped, but for offering Noise first as we require."""
    host = libp2p.new_host(key_pair=create_new_key_pair(os.urandom(32)))
    async with host.run([multiaddr.Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        yield host


@pytest.fixture(autouse=True)
def _collect_leaks() -> Iterator[None]:
    """Collect the sockets that the library's hosts leak here, not in somebody else's test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def read_exactly(stream: YamuxStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := await stream.receive_some(size - len(data))):
        data += more
    return bytes(data)


PAYLOAD = os.urandom(3 * 1024 * 1024)


async def echo(connection: Connection) -> None:
    """Serve ``PROTOCOL``, refusing whatever else the library opens (identify, ping)."""

    async def serve(stream: YamuxStream) -> None:
        try:
            await accept_protocol(negotiable(stream), [PROTOCOL])
        except Exception:
            stream.reset()
            return
        stream.let_window_grow(4 * 1024 * 1024)
        await stream.send_all([await read_exactly(stream, len(PAYLOAD))])
        stream.send_eof()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    nursery.start_soon(serve, await connection.session.accept_stream())
            except ConnectionLost:
                nursery.cancel_scope.cancel()

    await connection.run(work)


@pytest.mark.slow
async def test_a_stock_host_dials_us_and_data_goes_both_ways(hosts: Hosts) -> None:
    async with hosts(echo) as ours, stock_host() as stock:
        await stock.connect(info_from_p2p_addr(multiaddr.Multiaddr(ours.addresses[0])))
        stream = await stock.new_stream(
            libp2p.peer.id.ID.from_base58(ours.peer_id), [libp2p.TProtocol(PROTOCOL)]
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, PAYLOAD)
            received = bytearray()
            while len(received) < len(PAYLOAD):
                received += await stream.read(65536)
        assert received == PAYLOAD
