"""Framing: every way to cut the bytes gives the same frames; every bad length is refused early."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.wire.framing import PREFIX, Frame, FrameDecoder, encode_frame


def decoder() -> FrameDecoder[bytes]:
    return FrameDecoder(bytes, lambda header: 500)


def wire(header: bytes, payload: bytes = b"") -> bytes:
    return b"".join(encode_frame(header, payload))


FRAMES = [(b"h", b""), (b"header", b"payload"), (b"x" * 100, b"y" * 500), (b"z", b"\0")]


@given(cuts=st.lists(st.integers(0, 700), max_size=20))
def test_any_cut_gives_the_same_frames(cuts: list[int]) -> None:
    stream = b"".join(wire(*frame) for frame in FRAMES)
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    machine, frames = decoder(), []
    for start, end in itertools.pairwise(edges):
        frames += machine.receive_data(stream[start:end])
    assert frames == [Frame(header, payload) for header, payload in FRAMES]
    assert all(type(frame.payload) is bytes for frame in frames)
    machine.receive_eof()


def test_pieces_of_any_size_make_one_payload() -> None:
    parts = [b"a" * 5000, b"b", b"c" * 10, b"d" * 4096, b"e" * 3]
    payload = b"".join(parts)
    machine = FrameDecoder(bytes, lambda header: 20_000)
    machine.receive_data(wire(b"head", payload)[: PREFIX.size + 4])
    frames = [frame for part in parts for frame in machine.receive_data(part)]
    assert frames == [Frame(b"head", payload)]


def test_what_is_held_of_an_unfinished_frame_is_known() -> None:
    machine, stream = decoder(), wire(b"head", b"body")
    for length in range(1, len(stream)):
        assert machine.receive_data(stream[length - 1 : length]) == []
        assert machine.held_bytes == length
    assert len(machine.receive_data(stream[-1:] + stream + stream[:9])) == 2
    assert machine.held_bytes == 9


@pytest.mark.parametrize("length", range(1, len(wire(b"head", b"body"))))
def test_truncation_is_noticed_everywhere_but_between_frames(length: int) -> None:
    machine = decoder()
    machine.receive_data(wire(b"first") + wire(b"head", b"body")[:length])
    with pytest.raises(RemoteProtocolError, match="frame-truncated"):
        machine.receive_eof()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (PREFIX.pack(0, 0), "header-size"),
        (PREFIX.pack(limits.MAX_HEADER_BYTES + 1, 0), "header-size"),
        (PREFIX.pack(2**32 - 1, 0), "header-size"),
        (PREFIX.pack(1, limits.MAX_PAYLOAD_BYTES + 1), "payload-size"),
        (PREFIX.pack(1, 2**32 - 1), "payload-size"),
        (PREFIX.pack(1, 501) + b"h", "payload-size"),  # over the limit of its own message
        (b"\xff" * 8, "header-size"),
    ],
)
def test_bad_lengths_are_refused_before_anything_is_kept(data: bytes, reason: str) -> None:
    machine = decoder()
    with pytest.raises(RemoteProtocolError) as caught:
        machine.receive_data(data)
    assert caught.value.reason == reason
    assert caught.value.penalty > 0
    with pytest.raises(LocalProtocolError):
        machine.receive_data(wire(b"more"))
    with pytest.raises(RemoteProtocolError):
        machine.receive_eof()


def test_our_own_frames_keep_to_the_limits() -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(b"")
    with pytest.raises(LocalProtocolError):
        encode_frame(b"x" * (limits.MAX_HEADER_BYTES + 1))
    assert encode_frame(b"x" * limits.MAX_HEADER_BYTES)
    too_much = memoryview(np.broadcast_to(np.uint8(0), limits.MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_frame(b"x", too_much)
    payload = bytearray(b"big")
    buffers = encode_frame(b"x", payload)
    assert buffers[1] is payload  # passed on, not copied
