"""Frames between node and worker: round trips, backpressure, hostile bytes."""

import socket
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
import trio
from hypothesis import given
from hypothesis import strategies as st

from client.compute import requests
from client.compute.errors import FrameError
from client.compute.frames import ANSWERS, HEADER, REQUESTS, pack, unpack
from client.compute.process import Call, Worker
from client.compute.requests import Done, Failed, Ping
from client.compute.worker import AHEAD, Channel, NodeGone, _answer, serve
from protocol.pipeline.effects import BackwardTask, ForwardTask
from tests.support.compute_stages import open_request, opened, tokens_of

PRODUCT = Path(requests.__file__).parent
MESSAGE = Ping()


def parse(data, decoder=ANSWERS):
    (size,) = HEADER.unpack(data[: HEADER.size])
    body = unpack(data[HEADER.size : HEADER.size + size], decoder)
    return body, list(map(bytes, body.cut(memoryview(data)[HEADER.size + size :])))


@given(st.lists(st.binary(max_size=3000), max_size=6))
def test_frames_round_trip(payloads) -> None:
    body, received = parse(b"".join(pack(7, MESSAGE, payloads)), REQUESTS)
    assert (body.id, body.message, received) == (7, MESSAGE, payloads)


HOSTILE = {
    "no msgpack": b"\xc1\xc1",
    "empty": b"",
    "no array": msgspec.msgpack.encode({"id": 1}),
    "extra field": msgspec.msgpack.encode([1, {"type": "Ping"}, [], 5]),
    "deep": b"\x91" * 100_000,
    "negative size": msgspec.msgpack.encode([1, {"type": "Ping"}, [-5, 10]]),
    "no request": msgspec.msgpack.encode([1, {"type": "Pong"}, []]),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_bodies_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        unpack(body, REQUESTS)


@pytest.fixture
def connected():
    """A worker's channel, and the node's socket of it."""
    node, worker = socket.socketpair()
    with node, worker:
        yield Channel(worker), node


def test_a_channel_receives_and_answers(connected) -> None:
    channel, node = connected
    for buffer in pack(3, MESSAGE, [b"small", bytes(4096)]):
        node.sendall(buffer)
    received, sent = channel.receive()
    assert (received.id, list(map(bytes, sent))) == (3, [b"small", bytes(4096)])
    channel.send(3, Done(), [b"answer"])
    body, payloads = parse(node.recv(10_000))
    assert (body.id, body.message, payloads) == (3, Done(), [b"answer"])
    node.close()
    with pytest.raises(NodeGone):
        channel.receive()
    with pytest.raises(NodeGone):
        channel.send(4, MESSAGE, [bytes(100)])


def test_a_channel_reads_ahead_and_leaves_the_rest_in_the_socket(connected) -> None:
    """A worker that computes holds no more payloads than it needs next."""
    channel, node = connected
    node.settimeout(0.2)
    sent = 0
    with suppress(TimeoutError):
        for sent in range(100):
            for buffer in pack(sent, MESSAGE, [bytes(4 << 20)]):
                node.sendall(buffer)
    assert sent == AHEAD
    assert [channel.receive()[0].id for _ in range(sent)] == list(range(sent))


def test_an_answer_that_no_frame_holds_becomes_a_failure(connected) -> None:
    channel, node = connected
    _answer(channel, 5, Done(), [None])
    body, sent = parse(node.recv(10_000))
    assert isinstance(body.message, Failed)
    assert (body.id, body.message.kind, sent) == (5, "internal", [])


def test_bytes_that_are_no_frame_end_the_worker(connected) -> None:
    channel, node = connected
    node.sendall(bytes(16))
    with pytest.raises(FrameError):
        channel.receive()


def test_a_request_for_which_there_is_no_room_ends_the_worker(connected, monkeypatch) -> None:
    def full(channel, size: int) -> bytearray:
        raise MemoryError

    monkeypatch.setattr(Channel, "_exactly", full)
    channel = Channel(connected[1])
    get = partial(channel._read.get, timeout=10)
    monkeypatch.setattr(channel._read, "get", get)
    with pytest.raises(MemoryError):
        channel.receive()


def test_the_way_from_a_frame_to_the_device_is_short(connected, monkeypatch) -> None:
    """Between the frame of a backward and the model five functions run, and no more."""
    channel, node = connected
    first = opened(0, [2, 2])
    shape = first.replica.wire.boundary_shape
    gradient = bytes(first.replica.wire.boundary_out(torch.ones(shape), "backward").now().ready())
    asked = [
        (open_request(0, [2, 2]), ()),
        (ForwardTask(0, 7), (tokens_of(7),)),
        (BackwardTask(0, 7), (gradient,)),
    ]
    for number, (request, payloads) in enumerate(asked):
        for buffer in pack(number, request, payloads):
            node.sendall(buffer)
    node.shutdown(socket.SHUT_WR)
    ways, run_back = [], torch.autograd.backward

    def traced(*given) -> None:
        stack = traceback.extract_stack()
        ways.append([f.name for f in stack if f.filename.startswith(str(PRODUCT))])
        run_back(*given)

    monkeypatch.setattr(torch.autograd, "backward", traced)
    serve(channel)
    assert ways[-1] == ["serve", "execute", "_run", "backward", "run_back"]


def test_a_frame_cut_short_means_that_the_node_is_gone(connected) -> None:
    channel, node = connected
    node.sendall(pack(3, MESSAGE, [bytes(5000)])[0])
    node.close()
    with pytest.raises(NodeGone):
        channel.receive()


def test_a_node_that_died_before_it_read_an_answer_is_gone(connected) -> None:
    channel, node = connected
    channel.send(1, MESSAGE, [])
    node.close()  # with bytes unread: the next read is a reset, not an end
    with pytest.raises(NodeGone):
        channel.receive()


class Pieces:
    """A stream that brings given bytes, so many at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    async def receive_some(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        size = min(most, self._size)
        piece, self._data = self._data[:size], self._data[size:]
        return piece


@pytest.mark.parametrize("size", [1, 7, 4096, 10**6])
async def test_answers_are_read_from_a_stream_however_it_is_cut(size: int) -> None:
    payloads = [b"x" * 5000, b"", b"y" * 300]
    data = b"".join(map(bytes, pack(7, Done(), payloads)))
    for given_bytes in (data, data[:-1]):
        made, call = waiting()
        made._stream = cast(trio.SocketStream, Pieces(given_bytes, size))
        with pytest.raises(trio.EndOfChannel):
            await made._receive_frames()
        assert call.answer == ((Done(), payloads) if given_bytes is data else None)


def waiting() -> tuple[Worker, Call[Any]]:
    """What talks to a worker, without one; it waits for the answer to request 7."""
    made = Worker.__new__(Worker)
    call = Call[Any](7, MESSAGE, ())
    made._waiting = {7: call}
    return made, call


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"".join(map(bytes, pack(8, Done(), []))), "a request 8 that nobody made"),
        (b"".join(map(bytes, pack(7, MESSAGE, []))), "malformed"),
    ],
    ids=["unknown number", "no answer"],
)
async def test_an_answer_that_is_none_is_the_workers_end(data: bytes, words: str) -> None:
    made, call = waiting()
    made._stream = cast(trio.SocketStream, Pieces(data, len(data)))
    with pytest.raises(FrameError, match=words):
        await made._receive_frames()
    assert not call.done.is_set()
