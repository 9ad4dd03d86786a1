"""Vectors in two, three and four bits: what is lost, what is sent, and what is refused."""

from __future__ import annotations

import hashlib
import math
import struct
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from client.compute.codec import decode, encode
from client.compute.codecs import s8
from client.compute.codecs.bits import pack, unpack
from client.compute.codecs.levels import EIGHT, SIXTEEN, SMALLEST_SCALE
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import HEADER
from model_zoo.specs.codec import CODECS, Codec

LEVELS: list[Codec] = ["q2", "q3", "q4"]
BLOCK = 4096
SIZES = [1, 5, 4095, 4096, 4097, 3 * BLOCK, 70_001]
NUMBERS_BYTES = {"q2": 1024, "q3": 1536, "q4": 2048}
BITS = {"q2": 2, "q3": 3, "q4": 4}


def gaussian(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def sent(numbers: torch.Tensor, codec: Codec) -> bytes:
    return bytes(encode(numbers, codec, direction="average"))


def arrived(numbers: torch.Tensor, codec: Codec) -> torch.Tensor:
    return decode(sent(numbers, codec), numbers.shape)


def edited(codec: Codec, place: int, data: bytes, size: int = 5000) -> bytes:
    payload = bytearray(sent(gaussian(size), codec))
    payload[place : place + len(data)] = data
    return bytes(payload)


def bf16(number: float) -> bytes:
    return struct.pack("<f", number)[2:]


def moments(low: float, high: float) -> tuple[float, float]:
    """The chance of a Gaussian number between two, and what such numbers give to the mean."""
    chance = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    return chance, (math.exp(-(low**2) / 2) - math.exp(-(high**2) / 2)) / math.sqrt(2 * math.pi)


def cells(codec: Codec) -> tuple[list[tuple[float, float]], list[float]]:
    """Between which magnitudes each positive level stands, and the levels, for Gaussian numbers."""
    if codec == "q2":
        borders = [0.0, math.sqrt(2 / math.pi), math.inf]
        return list(pairwise(borders)), [
            share / chance for chance, share in (moments(*cell) for cell in pairwise(borders))
        ]
    levels = {"q3": EIGHT, "q4": SIXTEEN}[codec]
    borders = [0.0, *((low + high) / 2 for low, high in pairwise(levels)), math.inf]
    return list(pairwise(borders)), list(levels)


@pytest.mark.parametrize("codec", LEVELS)
def test_levels_are_the_means_of_their_cells(codec: Codec) -> None:
    """Which is what Lloyd and Max ask for, beside borders that lie midway."""
    for (low, high), level in zip(*cells(codec), strict=True):
        chance, share = moments(low, high)
        assert level == pytest.approx(share / chance, abs=2e-4)


@pytest.mark.parametrize(("codec", "left"), [("q2", 0.1250), ("q3", 0.03455), ("q4", 0.00950)])
def test_as_much_is_lost_as_theory_says(codec: Codec, left: float) -> None:
    spans, levels = cells(codec)
    kept = sum(
        2 * level * (2 * moments(*span)[1] - level * moments(*span)[0])
        for span, level in zip(spans, levels, strict=True)
    )
    assert 1 - kept == pytest.approx(left, rel=2e-3)
    numbers = gaussian(1 << 19)
    lost = numbers - arrived(numbers, codec)
    assert float(lost.square().mean() / numbers.square().mean()) == pytest.approx(left, rel=0.01)
    assert float((lost * numbers).mean()) == pytest.approx(left, rel=0.05)  # all along the numbers


@pytest.mark.parametrize("codec", LEVELS)
@pytest.mark.parametrize("exponent", [-40, 0, 35])
def test_levels_scale_with_their_chunk(codec: Codec, exponent: int) -> None:
    numbers = gaussian(2 * BLOCK)
    numbers[BLOCK:] *= 2.0**exponent
    found = arrived(numbers, codec)
    assert torch.equal(found[:BLOCK], arrived(numbers[:BLOCK], codec))
    rescaled = found[BLOCK:] * 2.0**-exponent
    assert torch.equal(rescaled, arrived(numbers[BLOCK:] * 2.0**-exponent, codec))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("codec", LEVELS)
def test_a_payload_is_as_long_as_its_chunks(codec: Codec, size: int) -> None:
    chunks, scales = -(-size // BLOCK), 2 if codec == "q2" else 1
    assert len(sent(gaussian(size), codec)) == HEADER.size + chunks * (
        2 * scales + NUMBERS_BYTES[codec]
    )
    assert CODECS[codec].bytes_per_number * BLOCK == 2 * scales + NUMBERS_BYTES[codec]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("codec", LEVELS)
def test_what_fills_the_last_chunk_does_not_count(codec: Codec, size: int) -> None:
    """Numbers of one magnitude have it as their mean and as their root mean square."""
    numbers = torch.full((size,), 3.0).copysign(gaussian(size))
    levels = {"q2": (1.0,), "q3": EIGHT, "q4": SIXTEEN}[codec]
    expected = 3.0 * min(levels, key=lambda level: abs(level - 1))
    assert torch.equal(arrived(numbers, codec), (numbers / 3 * expected))


@pytest.mark.parametrize("codec", LEVELS)
def test_signs_stay_and_levels_rise(codec: Codec) -> None:
    numbers = gaussian(BLOCK).sort().values
    found = arrived(numbers, codec)
    assert torch.equal(found.sign(), numbers.sign())
    assert (found.diff() >= 0).all()
    assert len(found.unique()) == 2 ** BITS[codec]


def test_a_mean_that_is_rounded_down_leaves_no_others() -> None:
    """Then all three magnitudes are above it."""
    found = arrived(torch.full((3,), 0.11), "q2")
    assert torch.equal(found, torch.full((3,), 0.11).bfloat16().float())


def test_two_means_are_means() -> None:
    numbers = torch.tensor([1.0, -3.0, 20.0, 2.0, -24.0])  # mean magnitude 10
    assert arrived(numbers, "q2").tolist() == [2.0, -2.0, 22.0, 2.0, -22.0]


@pytest.mark.parametrize("codec", LEVELS)
def test_nothing_and_next_to_nothing_arrive_as_zero(codec: Codec) -> None:
    for numbers in (torch.zeros(5000), gaussian(5000) * SMALLEST_SCALE / 10):
        assert not arrived(numbers, codec).any()
    assert arrived(gaussian(5000) * SMALLEST_SCALE * 10, codec).any()


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
def test_bits_are_packed_and_found_again(bits: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (3, 64), dtype=torch.uint8, generator=generator)
    packed = pack(codes, bits)
    assert packed.shape == (3, 8 * bits)
    assert torch.equal(unpack(packed, bits, 64), codes)


def test_the_layout_of_packed_bits() -> None:
    codes = torch.arange(8, dtype=torch.uint8).view(1, 8)
    assert pack(codes, 4).tolist() == [[0x40, 0x51, 0x62, 0x73]]
    # the low two bits, halves over halves, and then the third one
    assert pack(codes, 3).tolist() == [[0b10_10_00_00, 0b11_11_01_01, 0b10101010]]


@pytest.mark.parametrize("codec", LEVELS)
def test_another_program_reads_the_same_numbers(codec: Codec) -> None:
    """Bit by bit, as the modules describe it."""
    numbers = gaussian(BLOCK)
    body = sent(numbers, codec)[HEADER.size :]
    count = 2 if codec == "q2" else 1
    scales = np.frombuffer(body[: 2 * count], "<u2").astype(np.uint32) << 16
    data = np.frombuffer(body[2 * count :], np.uint8)
    codes, below = np.zeros(BLOCK, int), 0
    for width in (4, 2, 1):
        if BITS[codec] & width:
            field, data = data[: BLOCK * width // 8], data[BLOCK * width // 8 :]
            places = np.arange(BLOCK)
            place, shift, size, held = places, 0, BLOCK, width
            while held < 8:
                size, held = size // 2, held * 2
                shift = shift + np.where(place >= size, held // 2, 0)
                place = place % size
            codes |= (field[place] >> shift & (1 << width) - 1).astype(int) << below
            below += width
    real = scales.view(np.float32)
    levels = real if codec == "q2" else real * np.float32({"q3": EIGHT, "q4": SIXTEEN}[codec])
    signs, level = np.divmod(codes, 1 << BITS[codec] - 1)
    expected = np.where(signs, -1, 1).astype(np.float32) * levels[level]
    assert (arrived(numbers, codec).numpy() == expected).all()


@pytest.mark.parametrize(
    ("codec", "digest"),
    [("q2", "a1f4d10ebf80caa4"), ("q3", "f51b59822eafa3ee"), ("q4", "24ba97cc2642c7bb")],
)
def test_bytes_are_the_same_on_every_machine(codec: Codec, digest: str) -> None:
    whole = torch.arange(70_001, dtype=torch.int64)
    numbers = ((whole * 48_271 % 65_521) - 32_760).float() * (whole % 7 - 3).float() / 1024
    assert hashlib.sha256(sent(numbers, codec)).hexdigest()[:16] == digest


@pytest.mark.parametrize("codec", LEVELS)
def test_neither_pieces_nor_threads_show(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, before = gaussian(300_001), torch.get_num_threads()
    expected, decoded = sent(numbers, codec), arrived(numbers, codec)
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for chunk in (1, BLOCK, 3 * BLOCK + 1, 1 << 25):
                monkeypatch.setattr(s8, "chunk_of", lambda device, chunk=chunk: chunk)
                assert sent(numbers, codec) == expected
                assert torch.equal(arrived(numbers, codec), decoded)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30, -1e25, 1e17])
@pytest.mark.parametrize("place", [0, 4096, -1])
@pytest.mark.parametrize("codec", LEVELS)
def test_poison_is_not_sent(codec: Codec, place: int, poison: float) -> None:
    numbers = gaussian(9000)
    numbers[place] = poison
    with pytest.raises(PoisonedTensor):
        encode(numbers, codec, direction="average")


@pytest.mark.parametrize("codec", LEVELS)
def test_what_may_be_sent_can_be_read(codec: Codec) -> None:
    largest = torch.full((5000,), s8.LARGEST_SCALE)
    assert torch.isfinite(arrived(largest, codec)).all()
    with pytest.raises(PoisonedTensor):
        encode(largest * 1.01, codec, direction="average")


BAD_SCALES = {
    "nan": b"\xc0\x7f",
    "infinite": b"\x80\x7f",
    "negative": bf16(-1.0),
    "negative zero": bf16(-0.0),
    "huge": bf16(2.0**41),
    "tiny": bf16(2.0**-51),
}


@pytest.mark.parametrize("scale", BAD_SCALES.values(), ids=BAD_SCALES.keys())
@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("codec", LEVELS)
def test_bad_scales_are_refused(codec: Codec, chunk: int, scale: bytes) -> None:
    both = scale * (CODECS[codec].block_bytes - NUMBERS_BYTES[codec] >> 1)
    place = HEADER.size + chunk * CODECS[codec].block_bytes
    for data in {scale, both}:
        with pytest.raises(CodecError, match="scales"):
            decode(edited(codec, place, data), (5000,))


@pytest.mark.parametrize("codec", LEVELS)
def test_each_piece_counts(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s8, "chunk_of", lambda device: BLOCK)
    for chunk in range(3):
        place = HEADER.size + chunk * CODECS[codec].block_bytes
        with pytest.raises(CodecError, match="scales"):
            decode(edited(codec, place, bf16(2.0**41), size=3 * BLOCK), (3 * BLOCK,))


def test_a_low_mean_above_the_high_one_is_refused() -> None:
    for low, high, good in ((1.0, 1.0, True), (0.0, 2.0**40, True), (1.01, 1.0, False)):
        payload = edited("q2", HEADER.size, bf16(low) + bf16(high))
        if good:
            assert torch.isfinite(decode(payload, (5000,))).all()
        else:
            with pytest.raises(CodecError, match="scales"):
                decode(payload, (5000,))


@pytest.mark.parametrize("codec", LEVELS)
def test_scales_at_the_bounds_are_read(codec: Codec) -> None:
    for scale in (0.0, SMALLEST_SCALE, s8.LARGEST_SCALE):
        both = bf16(scale) * (CODECS[codec].block_bytes - NUMBERS_BYTES[codec] >> 1)
        found = decode(edited(codec, HEADER.size, both), (5000,))[:BLOCK]
        assert torch.isfinite(found).all()
        assert bool(found.any()) is (scale > 0)


@pytest.mark.parametrize("codec", LEVELS)
def test_payloads_of_another_size_are_refused(codec: Codec) -> None:
    payload = sent(gaussian(5000), codec)
    for size in (*range(70), *range(70, len(payload), 97), len(payload) - 1):
        with pytest.raises(CodecError):
            decode(payload[:size], (5000,))
    for longer in (payload + b"\0", payload + payload[HEADER.size :]):
        with pytest.raises(CodecError):
            decode(longer, (5000,))
    for shape in ((4999,), (5001,), (5000, 1), (1, 5000), (BLOCK,)):
        with pytest.raises(CodecError):
            decode(payload, shape)


@pytest.mark.parametrize("codec", LEVELS)
def test_headers_of_another_codec_are_refused(codec: Codec) -> None:
    numbers = {CODECS[name].number for name in CODECS} - {CODECS[codec].number}
    for number in (*numbers, 7, 255):
        with pytest.raises(CodecError):
            decode(edited(codec, 5, bytes([number])), (5000,))
    for place, data in ((6, b"\x01"), (6, b"\x02"), (10, b"\x80\x00"), (12, b"\xff" * 4)):
        tracemalloc.start()
        try:
            with pytest.raises(CodecError):
                decode(edited(codec, place, data), (5000,))
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(LEVELS),
    st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), max_size=6),
)
def test_damaged_payloads_decode_sanely_or_are_refused(
    codec: Codec, edits: list[tuple[int, int]]
) -> None:
    payload = bytearray(sent(gaussian(5000), codec))
    for place, value in edits:
        payload[place % len(payload)] = value
    try:
        found = decode(payload, (5000,))
    except CodecError:
        return
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("codec", LEVELS)
@pytest.mark.parametrize("shape", [(1, 4096), (2, 3, 128)])
def test_they_are_for_vectors_alone(codec: Codec, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot encode"):
        encode(torch.zeros(shape), codec, direction="forward")
    flat = bytearray(sent(torch.zeros(math.prod(shape)), codec))
    flat[8] = len(shape)
    flat[12:28] = struct.pack("<4I", *shape, *[0] * (4 - len(shape)))
    with pytest.raises(CodecError, match="for vectors"):
        decode(flat, shape)


@pytest.mark.parametrize("codec", LEVELS)
def test_what_is_left_out_is_sent_later(codec: Codec) -> None:
    """Over fifty rounds everything arrives but the last residual, which does not grow."""
    residual, given, taken = torch.zeros(9000), torch.zeros(9000), torch.zeros(9000)
    for seed in range(50):
        gradient = gaussian(9000, seed) * torch.linspace(0.01, 3, 9000)
        given, total = given + gradient, gradient + residual
        found = arrived(total, codec)
        residual, taken = total - found, taken + found
    assert float((taken + residual - given).norm() / given.norm()) < 1e-6
    assert float(residual.norm() / gradient.norm()) < {"q2": 0.8, "q3": 0.3, "q4": 0.2}[codec]
