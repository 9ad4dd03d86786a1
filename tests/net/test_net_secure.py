"""Sealed messages on a real socket: cut anywhere, forged, and how seldom the reader is woken."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from noise.backends.default.ciphers import ChaCha20Cipher
from noise.state import CipherState

from client.net.errors import ConnectionLost
from client.net.secure import (
    MAX_MESSAGE_BYTES,
    MAX_PLAINTEXT_BYTES,
    READ_BYTES,
    SecureChannel,
    seal,
)
from client.net.tcp import MAX_LOW_WATER_BYTES, SEND_BUFFER_BYTES, TcpStream
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId

KEY = b"k" * 32
SIZES = (1, 0, 100, MAX_PLAINTEXT_BYTES, 2, MAX_PLAINTEXT_BYTES, MAX_PLAINTEXT_BYTES - 1, 30_000)


def cipher(key: bytes = KEY, counter: int = 0) -> CipherState:
    state = CipherState(SimpleNamespace(cipher_class=ChaCha20Cipher))
    state.initialize_key(key)
    state.set_nonce(counter)
    return state


@asynccontextmanager
async def line() -> AsyncIterator[tuple[trio.SocketStream, SecureChannel]]:
    """A bare end, and a channel that opens what the bare end sends."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    bare = await trio.open_tcp_stream(*listener.socket.getsockname())
    async with listener, bare, await listener.accept() as accepted:
        with trio.fail_after(30):
            yield bare, SecureChannel(TcpStream(accepted), cipher(), cipher(), PeerId("b"))


async def received(channel: SecureChannel, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += await channel.receive()
    return found


@pytest.mark.parametrize("piece", [1, 7, 1460, MAX_MESSAGE_BYTES + 1, 10**7])
async def test_messages_come_whole_however_they_are_cut(piece: int) -> None:
    sizes = SIZES if piece > 7 else (1, 0, 100, 3000)
    plaintexts = [os.urandom(size) for size in sizes] * (4 if piece > 7 else 1)
    wire = seal(cipher(), plaintexts)
    async with line() as (bare, channel), trio.open_nursery() as nursery:

        async def send() -> None:
            for start in range(0, len(wire), piece):
                await bare.send_all(wire[start : start + piece])

        nursery.start_soon(send)
        assert await received(channel, len(plaintexts)) == plaintexts
    assert channel.bytes_in == len(wire)
    assert len(channel._buffer) <= READ_BYTES + MAX_MESSAGE_BYTES  # however much came


async def test_the_reader_sleeps_through_the_packets_of_a_message() -> None:
    async with line() as (bare, channel), trio.open_nursery() as nursery:
        tcp = channel.stream.stream.socket
        ours = cipher()
        wire = seal(ours, [bytes(MAX_PLAINTEXT_BYTES)])
        done = trio.Event()

        async def receive() -> None:
            assert len(await channel.receive()) == 1
            done.set()
            assert len(await channel.receive()) == 1

        nursery.start_soon(receive)
        await bare.send_all(wire[:1000])
        while channel.bytes_in < 1000:
            await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked()
        low_water = tcp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        assert low_water == MAX_LOW_WATER_BYTES
        await bare.send_all(wire[1000:-1])
        while channel.bytes_in < len(wire) - 1:
            await trio.sleep(0.001)
        await bare.send_all(wire[-1:])  # it waits for the missing bytes only
        await done.wait()
        await bare.send_all(seal(ours, [b""]))  # 18 bytes are enough to wake it again


HOSTILE = {
    "no tag": b"\x00\x00",
    "half a tag": b"\x00\x08" + b"?" * 8,
    "another key": seal(cipher(b"x" * 32), [b"hello"]),
    "another counter": seal(cipher(counter=1), [b"hello"]),
    "a flipped bit": seal(cipher(), [b"hello"])[:-1] + b"!",
    "a changed length": b"\x00\x14" + seal(cipher(), [b"hello"])[2:],
    "the largest": b"\xff\xff" + bytes(MAX_MESSAGE_BYTES),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_what_the_peer_did_not_seal_is_refused(data: bytes) -> None:
    async with line() as (bare, channel):
        await bare.send_all(data)
        with pytest.raises(RemoteProtocolError, match="noise-tag"):
            await channel.receive()


@pytest.mark.parametrize("length", [0, 1, 2, 10, 40])
async def test_an_end_inside_a_message_is_an_end(length: int) -> None:
    wire = seal(cipher(), [b"x" * 30])[:length]
    async with line() as (bare, channel):
        await bare.send_all(wire)
        await bare.send_eof()
        assert await channel.receive() == []


async def test_a_broken_connection_is_named_both_ways() -> None:
    async with line() as (_, channel):
        await channel.aclose()
        with pytest.raises(ConnectionLost, match="receiving"):
            await channel.receive()
        with pytest.raises(ConnectionLost, match="sending"):
            await channel.send_all([b"x"])


def test_what_is_sealed_is_what_noise_says() -> None:
    """Section 5.1 of its specification: length, ChaCha20-Poly1305 under the counter, tag."""
    plaintexts = [os.urandom(size) for size in SIZES]
    views = [bytearray(plaintexts[0]), *map(memoryview, plaintexts[1:])]
    expected = b""
    for nonce, plaintext in enumerate(plaintexts, start=2**40):
        counter = bytes(4) + nonce.to_bytes(8, "little")
        sealed = ChaCha20Poly1305(KEY).encrypt(counter, plaintext, None)
        expected += len(sealed).to_bytes(2, "big") + sealed
    ours = cipher(counter=2**40)
    first = seal(ours, iter(views))
    assert seal(ours, [b"other"]) is not first, "the socket may still read it"
    assert first == expected
    assert seal(cipher(), []) == b""


async def test_tuning_never_makes_the_send_buffer_smaller() -> None:
    async with line() as (bare, _):
        before = bare.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        TcpStream(bare)
        after = bare.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert before <= after <= SEND_BUFFER_BYTES
