"""Vectors in two, three and four bits: what is lost, what is sent, and what is refused."""

import math
import struct
from itertools import pairwise

import pytest
import torch

from client.compute.codecs import blocks
from client.compute.codecs.levels import EIGHT, SIXTEEN, SMALLEST_SCALE
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import SEAL_BYTES
from model_zoo.specs.codec import Codec
from tests.support.codecs import decode, encode

LEVELS: list[Codec] = ["q2", "q3", "q4"]
BLOCK = 4096
SIZES = [1, 5, 4095, 4096, 4097, 3 * BLOCK, 70_001]


def gaussian(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def sent(numbers: torch.Tensor, codec: Codec) -> bytes:
    return bytes(encode(numbers, codec, direction="average"))


def arrived(numbers: torch.Tensor, codec: Codec) -> torch.Tensor:
    return read(sent(numbers, codec), codec, len(numbers))


def read(payload: bytes | bytearray, codec: Codec, size: int = 5000) -> torch.Tensor:
    return decode(payload, (size,), codec, "average")


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
def test_what_fills_the_last_chunk_does_not_count(codec: Codec, size: int) -> None:
    """Numbers of one magnitude have it as their mean and as their root mean square."""
    numbers = torch.full((size,), 3.0).copysign(gaussian(size))
    levels = {"q2": (1.0,), "q3": EIGHT, "q4": SIXTEEN}[codec]
    expected = 3.0 * min(levels, key=lambda level: abs(level - 1))
    assert torch.equal(arrived(numbers, codec), (numbers / 3 * expected))


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


@pytest.mark.parametrize("codec", LEVELS)
def test_what_may_be_sent_can_be_read(codec: Codec) -> None:
    largest = torch.full((5000,), blocks.LARGEST_SCALE)
    assert torch.isfinite(arrived(largest, codec)).all()
    with pytest.raises(PoisonedTensor):
        encode(largest * 1.01, codec, direction="average")


def test_a_low_mean_above_the_high_one_is_refused() -> None:
    for low, high, good in ((1.0, 1.0, True), (0.0, 2.0**40, True), (1.01, 1.0, False)):
        payload = bytearray(sent(gaussian(5000), "q2"))
        payload[SEAL_BYTES : SEAL_BYTES + 4] = bf16(low) + bf16(high)
        if good:
            assert torch.isfinite(read(payload, "q2")).all()
        else:
            with pytest.raises(CodecError, match="never sent"):
                read(payload, "q2")
