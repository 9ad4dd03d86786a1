"""Frames and rings between node and worker: round trips, backpressure, hostile bytes."""

import os
import socket
import struct
import traceback
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
import trio
from hypothesis import given
from hypothesis import strategies as st

from client.compute import requests
from client.compute.channel import Channel, NodeGone
from client.compute.errors import FrameError
from client.compute.frame_stream import FrameReader
from client.compute.frames import (
    HEADER,
    MAX_BODY_BYTES,
    MAX_INLINE_BYTES,
    pack,
    payload_views,
    unpack_body,
    unpack_header,
)
from client.compute.process import Call, WorkerProcess
from client.compute.requests import Done, Ping
from client.compute.ring import RingReader, RingWriter, create_shared_file
from client.compute.worker import copy_beside, serve
from protocol.pipeline.effects import BackwardTask, ForwardTask, Outcome
from tests.support.compute_stages import open_request, opened, tokens_of

PRODUCT = Path(requests.__file__).parent
RING = 4096
MESSAGE = Ping()


def ring_pair(size=RING, copy=None):
    descriptor = create_shared_file(size)
    try:
        return RingWriter(descriptor, copy), RingReader(descriptor)
    finally:
        os.close(descriptor)


def parse(data, reader):
    header = unpack_header(data[: HEADER.size])
    body_end = HEADER.size + header.body_bytes
    envelope = unpack_body(data[HEADER.size : body_end], header)
    assert len(data) - body_end == header.inline_bytes
    views = payload_views(envelope, memoryview(data)[body_end:], reader)
    return envelope, [bytes(view) for view in views], header


@given(st.lists(st.binary(max_size=3000), max_size=6), st.sampled_from([None, copy_beside]))
def test_frames_round_trip_through_ring_or_socket(payloads, copy) -> None:
    writer, reader = ring_pair(copy=copy)
    data = b"".join(pack(7, MESSAGE, payloads, writer, 0))
    envelope, received, _ = parse(data, reader)
    assert envelope.id == 7
    assert msgspec.msgpack.decode(envelope.message, type=Ping) == MESSAGE
    assert received == payloads


@given(st.lists(st.tuples(st.integers(0, 1500), st.booleans()), max_size=40))
def test_a_ring_never_overwrites_what_was_not_read(steps) -> None:
    """Frames of any size, read at any time, arrive whole and in order."""
    writer, reader = ring_pair()
    unread = []

    def read_oldest():
        data, expected = unread.pop(0)
        _, (received,), header = parse(data, reader)
        assert received == expected
        reader.release(header.written)
        writer.reclaim(reader.read_up_to)

    for number, (size, read) in enumerate(steps):
        payload = bytes([number]) * size
        unread.append((b"".join(pack(number, MESSAGE, [payload], writer, 0)), payload))
        if read:
            read_oldest()
    while unread:
        read_oldest()


def test_a_drained_ring_is_used_again() -> None:
    writer, reader = ring_pair()
    for number in range(20):
        data = pack(number, MESSAGE, [bytes(3000)], writer, 0)
        assert len(data) == 1, "payload should be in the ring"
        reader.release(parse(data[0], reader)[2].written)
        writer.reclaim(reader.read_up_to)


def test_a_full_ring_sends_inline() -> None:
    writer, _ = ring_pair()
    assert [len(pack(n, MESSAGE, [bytes(1500)], writer, 0)) for n in range(3)] == [1, 1, 2]
    assert len(pack(3, MESSAGE, [bytes(RING + 1)], writer, 0)) == 2


def test_reading_more_than_was_written_is_refused() -> None:
    writer, _ = ring_pair()
    writer.place(b"abc")
    with pytest.raises(FrameError):
        writer.reclaim(writer.written + 1)


def frame(*, magic=b"VCF1", body=None, inline=b"", **sizes) -> bytes:
    body = msgspec.msgpack.encode([1, {"type": "Ping"}, []]) if body is None else body
    fields = {"body": len(body), "inline": len(inline), "written": 0, "read": 0, **sizes}
    return HEADER.pack(magic, *fields.values()) + body + inline


def body(*places, frame_id=1):
    return msgspec.msgpack.encode([frame_id, {}, list(places)])


HOSTILE = {
    "magic": frame(magic=b"XXXX"),
    "huge body": HEADER.pack(b"VCF1", MAX_BODY_BYTES + 1, 0, 0, 0),
    "huge inline": HEADER.pack(b"VCF1", 0, MAX_INLINE_BYTES + 1, 0, 0),
    "no msgpack": frame(body=b"\xc1\xc1"),
    "empty body": frame(body=b""),
    "not an envelope": frame(body=msgspec.msgpack.encode({"id": 1})),
    "extra field": frame(body=msgspec.msgpack.encode([1, {}, [], 5])),
    "deep": frame(body=b"\x91" * 100_000),
    "inline without bytes": frame(body=body([5, -1])),
    "bytes without place": frame(body=body(), inline=b"12345"),
    "negative size": frame(body=body([-5, -1], [10, -1]), inline=b"12345"),
    "outside the ring": frame(body=body([10, RING - 5])),
    "negative offset": frame(body=body([10, -2])),
    "huge offset": frame(body=body([10, 1 << 62])),
    "huge size": frame(body=body([1 << 62, 0])),
    "too many payloads": frame(body=body(*[[0, 0]] * 2000)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_frames_are_refused(data) -> None:
    _, reader = ring_pair()
    with pytest.raises(FrameError):
        parse(data, reader)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data) -> None:
    _, reader = ring_pair()
    with pytest.raises((FrameError, struct.error)):
        parse(frame(body=data), reader)


@pytest.fixture
def connected():
    """A worker's channel, and the node's socket and rings of it."""
    (to_worker, incoming), (outgoing, from_worker) = ring_pair(), ring_pair()
    node, worker = socket.socketpair()
    with node, worker:
        yield Channel(worker, incoming, outgoing), node, to_worker, from_worker


def test_a_channel_receives_and_answers(connected) -> None:
    channel, node, to_worker, from_worker = connected
    for buffer in pack(3, MESSAGE, [b"in the ring", bytes(RING)], to_worker, 0):
        node.sendall(buffer)
    received = channel.receive()
    assert received.id == 3
    assert [bytes(payload) for payload in received.payloads] == [b"in the ring", bytes(RING)]
    channel.release(received)
    channel.send(3, MESSAGE, [b"answer"])
    envelope, payloads, header = parse(node.recv(10_000), from_worker)
    assert (envelope.id, payloads) == (3, [b"answer"])
    assert header.read_up_to == to_worker.written
    node.close()
    with pytest.raises(NodeGone):
        channel.receive()
    with pytest.raises(NodeGone):
        channel.send(4, MESSAGE, [bytes(100)])


def test_the_way_from_a_frame_to_the_device_is_short(connected, monkeypatch) -> None:
    """Between the frame of a backward and the model five functions run, and no more."""
    channel, node, to_worker, _ = connected
    first = opened(0, [2, 2])
    shape = first.replica.wire.boundary_shape
    gradient = bytes(first.replica.wire.boundary_out(torch.ones(shape), "backward").now())
    asked = [
        (open_request(0, [2, 2]), ()),
        (ForwardTask(0, 7), (tokens_of(7),)),
        (BackwardTask(0, 7), (gradient,)),
    ]
    for number, (request, payloads) in enumerate(asked):
        for buffer in pack(number, request, payloads, to_worker, 0):
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
    channel, node, to_worker, _ = connected
    node.sendall(pack(3, MESSAGE, [bytes(RING + 1)], to_worker, 0)[0])
    node.close()
    with pytest.raises(NodeGone):
        channel.receive()


def test_a_node_that_died_before_it_read_an_answer_is_gone(connected) -> None:
    channel, node, *_ = connected
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
async def test_frames_are_read_from_a_stream_however_it_is_cut(size: int) -> None:
    writer, _ = ring_pair(64)
    payloads = [b"x" * 5000, b"", b"y" * 300]
    frames = [pack(n, MESSAGE, payloads, writer, 0) for n in range(2)]
    data = b"".join(bytes(part) for frame in frames for part in frame)
    reader = FrameReader(cast(trio.SocketStream, Pieces(data, size)))
    for number in range(2):
        header, envelope, inline = await reader.read()
        assert envelope.id == number
        assert header.inline_bytes == len(inline) == 5300
        assert bytes(inline) == b"".join(payloads)
    with pytest.raises(trio.EndOfChannel):
        await reader.read()
    short = FrameReader(cast(trio.SocketStream, Pieces(data[:-1], size)))
    await short.read()
    with pytest.raises(trio.EndOfChannel):
        await short.read()


def waiting() -> tuple[WorkerProcess, Call[Any]]:
    """What talks to a worker, without one; it waits for the answer to request 7."""
    made = WorkerProcess.__new__(WorkerProcess)
    call = Call[Any](7, MESSAGE, ())
    made._waiting = {7: call}
    return made, call


@pytest.mark.parametrize(
    ("number", "reply", "words"),
    [
        (8, msgspec.msgpack.encode(Done()), "a request 8 that nobody made"),
        (7, b"\xc1", "worker's reply is malformed"),
        (7, msgspec.msgpack.encode(Outcome()), "worker answered Outcome"),
    ],
    ids=["unknown number", "malformed", "another kind"],
)
def test_an_answer_that_is_none_is_the_workers_end(number: int, reply: bytes, words: str) -> None:
    made, call = waiting()
    with pytest.raises(FrameError, match=words):
        made._answer(number, reply, [])
    assert not call.done.is_set()


def test_an_answer_goes_to_who_has_asked() -> None:
    made, call = waiting()
    made._answer(7, msgspec.msgpack.encode(Done()), [b"payload"])
    assert call.answer == (Done(), [b"payload"])
    assert call.done.is_set()
