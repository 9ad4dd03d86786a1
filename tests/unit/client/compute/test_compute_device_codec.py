"""Codecs that run where the numbers are make the bytes, numbers and refusals of the processor's.

The same code runs on a GPU; here its tensors are on the processor, which is told to be no host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from client.compute import codec, device_s8, lane, s8
from client.compute.codec import decode, encode
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import BLOCK_BYTES, HEADER, CodecName, Direction, read_header

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "average")
SHAPES = [
    *[(1,), (5,), (127,), (128,), (129,), (65_535,), (65_536,), (65_537,), (140_001,)],
    *[(1, 1), (3, 64), (7, 65), (2, 3, 127), (600, 129), (33, 5, 100), (513, 128), (1, 70_001)],
    *[(17, 1000), (100, 1024), (2, 2, 2, 300), (1025, 128), (520, 384)],
]
TILE = 512 * 128


@pytest.fixture(autouse=True, params=[TILE, device_s8.CHUNK], ids=["a tile at a time", "at once"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are cut small, or there is one."""
    for coded in (device_s8.encode, device_s8.decode):
        assert coded.__kwdefaults__ is not None
        monkeypatch.setitem(coded.__kwdefaults__, "chunk", request.param)
    monkeypatch.setattr(codec, "_DEVICE_CHUNK", request.param)


def there(work: Callable[[], object]) -> object:
    """Do something as on a device that is not the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "on_host", lambda device: False)
        return outcome(work)


def outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except (CodecError, PoisonedTensor) as error:
        return type(error), str(error)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def kinds(shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Tensors of every temper: usual, with outliers, tiny, huge, zero, denormal, on ties."""
    generator = torch.Generator().manual_seed(sum(shape))
    plain = torch.randn(shape, generator=generator)
    outlier, spiky = plain.clone(), plain.clone()
    outlier[..., shape[-1] // 3] *= 60
    spiky.view(-1)[:: max(1, plain.numel() // 5)] *= 1000
    ties = torch.randint(-254, 255, shape, generator=generator).float() / 2
    ties.view(-1)[::64] = 127.0
    yield from (plain, outlier, spiky, ties, torch.zeros(shape), -torch.zeros(shape))
    yield from (plain * magnitude for magnitude in (1e-20, 1e-30, 3e-41, 1e12, 1e36))
    yield plain * torch.exp2(torch.randint(-120, 40, shape, generator=generator).float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_bytes_and_numbers_are_the_same(shape: tuple[int, ...], direction: Direction) -> None:
    for tensor in kinds(shape):
        expected = outcome(lambda: bytes(encode(tensor, "s8", direction=direction)))  # noqa: B023
        found = there(lambda: bytes(encode(tensor, "s8", direction=direction)))  # noqa: B023
        assert found == expected
        if isinstance(expected, bytes):
            payload, right = expected, decode(expected, shape)
            assert bits(there(lambda: decode(payload, shape))) == bits(right)  # type: ignore[arg-type]  # noqa: B023
            out = torch.full(shape, 9.0)
            there(lambda: decode(payload, shape, out=out))  # noqa: B023
            assert bits(out) == bits(right)


def test_the_conditioned_modes_are_among_them() -> None:
    _, outlier, *_ = kinds((600, 129))
    for direction, flag in (("forward", "prescaled"), ("backward", "rotated")):
        payload = there(lambda: bytes(encode(outlier, "s8", direction=direction)))  # noqa: B023
        assert getattr(read_header(payload, outlier.shape), flag)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", [(1,), (7, 65), (70_000,), (600, 256)])
def test_plain_codecs_are_the_same(name: CodecName, shape: tuple[int, ...]) -> None:
    for tensor in kinds(shape):
        payload = outcome(lambda: bytes(encode(tensor, name, direction="forward")))  # noqa: B023
        assert there(lambda: bytes(encode(tensor, name, direction="forward"))) == payload  # noqa: B023
        if isinstance(payload, bytes):
            right = decode(payload, shape)
            assert bits(there(lambda: decode(payload, shape))) == bits(right)  # type: ignore[arg-type]  # noqa: B023


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=700),
    st.integers(1, 7),
    st.sampled_from(DIRECTIONS),
    st.sampled_from(["s8", "bf16", "fp32"]),
)
def test_arbitrary_bit_patterns_end_alike(
    patterns: list[int], rows: int, direction: Direction, name: CodecName
) -> None:
    """NaN, infinities, denormals and absurd magnitudes: the same bytes or the same refusal."""
    words = np.resize(np.array(patterns, np.uint32), (rows, len(patterns)))
    tensor = torch.from_numpy(words.view(np.float32))
    expected = outcome(lambda: bytes(encode(tensor, name, direction=direction)))
    assert there(lambda: bytes(encode(tensor, name, direction=direction))) == expected


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["s8", "bf16", "fp32"]),
    st.sampled_from(DIRECTIONS),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=4)), max_size=6),
)
def test_hostile_payloads_end_alike(
    name: CodecName, direction: Direction, edits: list[tuple[int, bytes]]
) -> None:
    """The same numbers or the same reason, whatever somebody has written over a payload."""
    tensor = torch.randn(70, 200, generator=torch.Generator().manual_seed(1))
    tensor[:, 3] *= 60
    payload = bytearray(encode(tensor, name, direction=direction))
    for place, data in edits:
        at = HEADER.size + place % (len(payload) - HEADER.size - len(data))
        payload[at : at + len(data)] = data
    expected = outcome(lambda: bits(decode(payload, tensor.shape)))
    found = there(lambda: bits(decode(payload, tensor.shape)))  # the reason names one of several
    assert found == expected or (isinstance(found, tuple) and found[0] is CodecError)
    assert isinstance(found, tuple) == isinstance(expected, tuple)


@pytest.mark.parametrize("scale", [0, 0x7F80, 0x7FC0, 0xFFC0, 0x8D80, 0x0D7F, 0x5381])
def test_a_scale_that_no_encoder_writes_is_refused(scale: int) -> None:
    payload = bytearray(encode(torch.randn(5, 130), "s8", direction="average"))
    payload[HEADER.size : HEADER.size + 2] = scale.to_bytes(2, "little")
    refused = there(lambda: decode(payload, (5, 130)))
    assert refused == outcome(lambda: decode(payload, (5, 130)))
    assert isinstance(refused, tuple)


def test_a_value_that_no_encoder_writes_is_refused() -> None:
    payload = bytearray(encode(torch.randn(5, 130), "s8", direction="average"))
    payload[-3] = 128
    assert there(lambda: decode(payload, (5, 130))) == (
        CodecError,
        "a value is below those that are sent",
    )


def test_another_s_conditioning_is_followed_there_as_well() -> None:
    _, outlier, *_ = kinds((64, 256))
    like = encode(outlier, "s8", direction="forward")
    expected = bytes(encode(outlier * (1 + 1e-7), "s8", direction="forward", like=like))
    found = there(lambda: bytes(encode(outlier * (1 + 1e-7), "s8", direction="forward", like=like)))
    assert found == expected


def test_the_rotation_is_its_own_inverse_and_that_of_the_processor() -> None:
    blocks = torch.randn(40, 128)
    before = blocks.clone()
    rotated = device_s8.rotate(blocks)
    assert bits(rotated) == bits(codec.conditioning.rotate(blocks))
    assert torch.equal(blocks, before)
    torch.testing.assert_close(device_s8.rotate(rotated), blocks)


def test_pieces_begin_with_tiles_and_cover_the_body() -> None:
    for shape in ((1, 140_001), (600, 129), (1025, 128), (17, 1000)):
        pieces = list(device_s8.encode(torch.randn(shape), None, rotated=False, chunk=TILE))
        places = [place for place, _, _ in pieces]
        assert [place.start for place in places[1:]] == [place.stop for place in places[:-1]]
        assert places[-1].stop == shape[0] * -(-shape[1] // 128) * BLOCK_BYTES
        assert all(place.start % (512 * BLOCK_BYTES) == 0 for place in places)
        assert len(pieces) > 1 or shape == (17, 1000)
        assert all(float(scale) <= s8.LARGEST_SCALE for _, _, scale in pieces)


def test_a_lane_of_the_processor_copies() -> None:
    way = lane.lane_to(torch.device("cpu"))
    data = torch.arange(100, dtype=torch.uint8)
    target = way.host_bytes(100)
    way.to_host(way.to_device(data), target)
    way.wait()
    assert torch.equal(target, data)
