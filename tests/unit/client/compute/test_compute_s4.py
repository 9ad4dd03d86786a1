"""Boundary tensors in four bits: what is lost, by which chance, and what is refused."""

from __future__ import annotations

import hashlib
import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from client.compute.auditing import LARGEST_OF_GROUP, before_coding
from client.compute.codec import decode, encode
from client.compute.codecs import s4, s8
from client.compute.conditioning import rotate
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import HEADER, Direction, read_header
from model_zoo.specs.codec import CODECS
from tests.support.compute_stages import relative_error

DIRECTIONS: list[Direction] = ["forward", "backward"]
KEY = s4.rounding_key("swarm", 3, 5, 1)
FEW = (3, 5, 128)
FIRST_VALUE = HEADER.size + 2


def gaussian(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sent(tensor: torch.Tensor, direction: Direction = "backward", key: bytes = KEY) -> bytes:
    return bytes(encode(tensor, "s4", direction=direction, key=key))


def arrived(
    tensor: torch.Tensor, direction: Direction = "backward", key: bytes = KEY
) -> torch.Tensor:
    return decode(sent(tensor, direction, key), tensor.shape)


def chances(key: bytes, count: int = 512) -> torch.Tensor:
    return s4._chances(0, count, key, torch.device("cpu")) / (1 << 16)


def representable(blocks: int) -> torch.Tensor:
    """Numbers that have no rounding error: rotated they are whole ones, up to 7 in each block."""
    values = torch.randint(-7, 8, (blocks, 128), generator=torch.Generator().manual_seed(blocks))
    values[:, 77] = 7
    return rotate(values.float())


@pytest.mark.parametrize("shape", [(1, 1, 128), (2, 3, 65), (4, 16, 2048), (7,), (5, 300)])
def test_it_takes_half_the_bytes_of_s8(shape: tuple[int, ...]) -> None:
    blocks = math.prod(shape[:-1]) * -(-shape[-1] // 128)
    assert len(sent(gaussian(shape))) == HEADER.size + 66 * blocks
    assert CODECS["s4"].body_bytes(shape) * 130 == CODECS["s8"].body_bytes(shape) * 66


@pytest.mark.parametrize("kind", ["gaussian", "one channel", "few numbers", "one group"])
@pytest.mark.parametrize(("direction", "bound"), [("forward", 0.125), ("backward", 0.178)])
def test_the_error_is_below_the_bound_whatever_the_numbers(
    direction: Direction, bound: float, kind: str
) -> None:
    tensor = gaussian((200, 256))
    if kind == "one channel":
        tensor[:, 70] *= 60
    elif kind == "few numbers":
        tensor.view(-1)[::1009] *= 100
    elif kind == "one group":
        tensor[7, :64] *= 1000
    assert bound / 20 < relative_error(arrived(tensor, direction), tensor) < bound


@pytest.mark.parametrize("shape", [(1,), (64,), (127,), (600, 129), (33, 5, 100), (17, 1000)])
@pytest.mark.parametrize(("direction", "most"), [("forward", 0.5), ("backward", 1.0)])
def test_no_number_is_a_step_off(shape: tuple[int, ...], direction: Direction, most: float) -> None:
    tensor = gaussian(shape)
    width = -(-shape[-1] // 128) * 128
    padded = torch.nn.functional.pad(tensor.view(-1, shape[-1]), (0, width - shape[-1]))
    rotated = rotate(padded.reshape(-1, 128))
    body = torch.frombuffer(bytearray(sent(tensor, direction)[HEADER.size :]), dtype=torch.uint8)
    scales = body.view(-1, 66)[:, :2].contiguous().view(torch.bfloat16).float()
    packed = body.view(-1, 66)[:, 2:]
    values = torch.cat([packed & 15, packed >> 4], dim=1).float() - 8
    assert values.abs().amax(dim=1).ge(7 if direction == "forward" else 6).all()
    assert ((values * scales - rotated).abs() <= scales * (most + 1e-5)).all()
    found = rotate(values * scales).view(len(padded), width)[:, : shape[-1]]
    assert torch.equal(arrived(tensor, direction), found.reshape(shape))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("times", [1.0, 2.0**-30, 2.0**30])
def test_numbers_between_which_nothing_lies_stay(direction: Direction, times: float) -> None:
    tensor = representable(700) * times
    assert torch.equal(arrived(tensor, direction), tensor)


def test_rounding_by_chance_loses_nothing_on_average() -> None:
    tensor = gaussian((4, 128))
    keys = [s4.rounding_key("swarm", 0, number, 1) for number in range(600)]
    mean = torch.stack([arrived(tensor, key=key) for key in keys]).mean(dim=0)
    alone = relative_error(arrived(tensor), tensor)
    assert relative_error(mean, tensor) < 1.15 * alone / math.sqrt(len(keys))
    assert relative_error(arrived(tensor, "forward"), tensor) > 0.1


def test_sums_over_many_rows_lose_nothing() -> None:
    """The chances of one tensor are independent of one another, too."""
    tensor = gaussian((1, 128)).expand(4096, 128).contiguous()
    alone = relative_error(arrived(tensor), tensor)
    assert relative_error(arrived(tensor).mean(dim=0), tensor[0]) < 1.15 * alone / 64


def test_chances_are_even_and_independent() -> None:
    found = chances(KEY)
    assert 0 < float(found.min()) < 1e-4
    assert 1 - 1e-4 < float(found.max()) < 1
    counts = (found * 16).long().flatten().bincount(minlength=16).float()
    expected = found.numel() / 16
    assert float(((counts - expected).square() / expected).sum()) < 45  # 15 degrees of freedom
    others = [
        chances(s4.rounding_key("swarm", 3, 6, 1)),
        chances(s4.rounding_key("swarm", 4, 5, 1)),
        found.roll(1, 0),
        *(found.roll(by, 1) for by in (1, 2, 63, 64)),
    ]
    limit = 4.5 / 12 / math.sqrt(found.numel())
    for other in others:
        assert abs(float(((found - 0.5) * (other - 0.5)).mean())) < limit


def test_the_same_key_makes_the_same_bytes_and_another_one_others() -> None:
    tensor = gaussian(FEW)
    names = [("swarm", 3, 5, 1), ("swarn", 3, 5, 1), ("swarm", 4, 5, 1), ("swarm", 3, 6, 1)]
    names += [("swarm", 3, 5, 2), ("swarm", 5, 3, 1), ("swarm", 35, 1, 1)]
    made = [sent(tensor, key=s4.rounding_key(*name)) for name in names]
    assert len(set(made)) == len(made)
    assert made == [sent(tensor, key=s4.rounding_key(*name)) for name in names]
    forward = {sent(tensor, "forward", s4.rounding_key(*name)) for name in names}
    assert len(forward) == 1


def test_no_other_chance_plays_a_part() -> None:
    tensor, state = gaussian(FEW), torch.random.get_rng_state()
    first = sent(tensor)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    assert sent(tensor) == first


def test_numbers_that_differ_in_their_last_bits_meet_the_same_chance() -> None:
    tensor = gaussian((64, 1024))
    nearly = tensor * (1 + 1e-6 * gaussian(tensor.shape, 1))
    assert relative_error(arrived(nearly), arrived(tensor)) < 2e-3


@pytest.mark.parametrize(
    ("direction", "digest"), [("forward", "e6afd84b611dcf16"), ("backward", "9cedb007b5c17d6e")]
)
def test_bytes_are_the_same_on_every_machine(direction: Direction, digest: str) -> None:
    whole = torch.arange(40 * 300, dtype=torch.int64)
    numbers = ((whole * 48_271 % 65_521) - 32_760).float() * (whole % 7 - 3).float() / 1024
    found = sent(numbers.view(40, 300), direction)
    assert hashlib.sha256(found).hexdigest()[:16] == digest


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_neither_pieces_nor_threads_show(
    direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor, before = gaussian((33, 300)), torch.get_num_threads()
    expected, decoded = sent(tensor, direction), arrived(tensor, direction)
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for chunk in (1, 1000, 1 << 25):
                monkeypatch.setattr(s8, "chunk_of", lambda device, chunk=chunk: chunk)
                assert sent(tensor, direction) == expected
                assert torch.equal(arrived(tensor, direction), decoded)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30, -1e15])
@pytest.mark.parametrize("place", [0, 700, -1])
def test_poison_is_not_sent(direction: Direction, poison: float, place: int) -> None:
    tensor = gaussian((70, 100))
    tensor.view(-1)[place] = poison
    with pytest.raises(PoisonedTensor):
        encode(tensor, "s4", direction=direction)


def test_zeros_stay_zeros() -> None:
    for direction in DIRECTIONS:
        assert not arrived(torch.zeros(FEW), direction).any()


def bf16(number: float) -> bytes:
    return struct.pack("<f", number)[2:]


def edited(place: int, data: bytes) -> bytes:
    payload = bytearray(sent(gaussian(FEW)))
    payload[place : place + len(data)] = data
    return bytes(payload)


LAST_BLOCK = HEADER.size + 14 * 66
HOSTILE = {
    "rotated": edited(6, b"\x02"),
    "prescaled": edited(6, b"\x01"),
    "block": edited(10, b"\x40\x00"),
    "dtype": edited(9, b"\x01"),
    "other codec": edited(5, b"\0"),
    "truncated": sent(gaussian(FEW))[:-1],
    "extra": sent(gaussian(FEW)) + b"\0",
    "nan": edited(HEADER.size, b"\xc0\x7f"),
    "infinite": edited(HEADER.size, b"\x80\x7f"),
    "negative": edited(LAST_BLOCK, bf16(-1.0)),
    "zero": edited(LAST_BLOCK, bf16(0.0)),
    "huge": edited(HEADER.size, bf16(2.0**41)),
    "tiny": edited(HEADER.size, bf16(2.0**-101)),
    "value of no encoder": edited(FIRST_VALUE, b"\xf0"),
    "high value of no encoder": edited(FIRST_VALUE, b"\x0f"),
    "last value of no encoder": edited(LAST_BLOCK + 65, b"\x0f"),
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(CodecError):
        decode(payload, FEW)


def test_bounds_of_scales_are_allowed() -> None:
    for scale in (s8.SMALLEST_SCALE, s8.LARGEST_SCALE):
        assert torch.isfinite(decode(edited(HEADER.size, bf16(scale)), FEW)).all()
    with pytest.raises(CodecError, match="scales reach"):
        decode(edited(HEADER.size, bf16(s8.LARGEST_SCALE * 1.01)), FEW)
    with pytest.raises(CodecError, match="a value is below"):
        decode(HOSTILE["value of no encoder"], FEW)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(DIRECTIONS),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
    st.integers(-3, 3),
)
def test_damaged_payloads_decode_sanely_or_are_refused(
    direction: Direction, edits: list[tuple[int, int]], growth: int
) -> None:
    payload = bytearray(sent(gaussian(FEW), direction))
    for place, value in edits:
        payload[place % len(payload)] = value
    payload = payload[: len(payload) + growth] + bytes(max(0, growth))
    try:
        found = decode(payload, FEW)
    except CodecError:
        return
    assert torch.isfinite(found).all()


def test_a_header_says_nothing_of_conditioning() -> None:
    tensor = gaussian((300, 256))
    tensor[:, 5] *= 60
    for direction in DIRECTIONS:
        assert read_header(sent(tensor, direction), tensor.shape, "s4", direction).flags == 0


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("apart", [1e-4, 1e-3, 1e-2])
def test_a_difference_is_told_from_what_rounding_makes_of_it(
    direction: Direction, apart: float
) -> None:
    tensor = gaussian((512, 1024))
    other = tensor + apart * gaussian(tensor.shape, 1)
    coded = relative_error(arrived(other, direction), arrived(tensor, direction))
    assert coded > 3 * apart
    found = before_coding(coded, CODECS["s4"].step * LARGEST_OF_GROUP)
    assert found == pytest.approx(apart, rel=0.45)


def test_without_a_step_a_difference_is_what_it_is() -> None:
    assert before_coding(0.25, 0.0) == 0.25
    assert before_coding(0.0, 0.4) == 0.0
    assert before_coding(math.sqrt(2), 0.4) > 1.2  # other tensors stay far apart
