"""S8, bf16 and fp32: accuracy, conditioning, and refusal of hostile numbers."""

import math
import struct
from itertools import product

import pytest
import torch

from client.compute import conditioning
from client.compute.codec import decode, encode
from client.compute.conditioning import FORWARD_PEAK_TO_RMS, FORWARD_SNR_DB
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import HEADER, TILE_BYTES, check_seal, read_header, seal
from tests.support.compute_stages import relative_error

SHAPES = [(1,), (127,), (70_000,), (3, 5, 128), (4, 600, 128), (2, 3, 65), (600, 256), (1, 1, 1)]
GAUSSIAN, OUTLIER = "gaussian", "one channel x60"


def sample(shape: tuple[int, ...], kind: str = GAUSSIAN) -> torch.Tensor:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    if kind == OUTLIER:
        tensor[..., shape[-1] // 3] *= 60
    return tensor


def roundtrip(tensor, codec, direction):
    return decode(encode(tensor, codec, direction=direction), tensor.shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("direction", ["forward", "backward", "average"])
def test_fp32_is_exact_and_bf16_rounds(shape, direction) -> None:
    tensor = sample(shape)
    assert torch.equal(roundtrip(tensor, "fp32", direction), tensor)
    assert torch.equal(roundtrip(tensor, "bf16", direction), tensor.bfloat16().float())


MATRICES = [(256, 128), (100, 1024), (64, 96), (64, 65), (9, 31, 64)]


@pytest.mark.parametrize(
    ("shape", "kind", "direction"),
    [
        *product(MATRICES, [GAUSSIAN], ["forward", "backward", "average"]),
        *product(MATRICES, [OUTLIER], ["forward", "backward"]),
        *product([(5,), (65_536,), (65_537,), (100_000,)], [GAUSSIAN], ["average"]),
    ],
)
def test_s8_error_is_below_the_bound(shape, kind, direction) -> None:
    tensor = sample(shape, kind)
    assert relative_error(roundtrip(tensor, "s8", direction), tensor) < 0.0075


def test_conditioning_is_used_only_when_it_is_needed() -> None:
    def header(kind, direction):
        tensor = sample((300, 256), kind)
        return read_header(encode(tensor, "s8", direction=direction), tensor.shape)

    assert not header(GAUSSIAN, "forward").prescaled
    assert not header(GAUSSIAN, "backward").rotated
    assert header(OUTLIER, "forward").prescaled
    assert header(OUTLIER, "backward").rotated


def apart_by_a_hair(payload_of, tensor, channel, differs):
    """Return a tensor and one whose channel is a millionth larger, whose payloads differ."""

    def scaled(by):
        return torch.cat(
            [tensor[:, :channel], tensor[:, channel : channel + 1] * by, tensor[:, channel + 1 :]],
            dim=1,
        )

    low, high = 1.0, 64.0
    assert differs(payload_of(scaled(low)), payload_of(scaled(high)))
    while high / low > 1 + 1e-6:
        middle = (low + high) / 2
        if differs(payload_of(scaled(low)), payload_of(scaled(middle))):
            high = middle
        else:
            low = middle
    return scaled(low), scaled(high)


def flags_differ(one, other):
    return read_header(one, (32, 128)).flags != read_header(other, (32, 128)).flags


def factors_differ(one, other):
    return bytes(one[HEADER.size : HEADER.size + 256]) != bytes(
        other[HEADER.size : HEADER.size + 256]
    )


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_hair_decides_the_conditioning_and_the_other_payload_settles_it(direction) -> None:
    def payload(tensor, like=None):
        return encode(tensor, "s8", direction=direction, like=like)

    def decoded(tensor, like=None):
        return decode(payload(tensor, like), tensor.shape)

    one, other = apart_by_a_hair(payload, sample((32, 128)), 3, flags_differ)
    for ours, theirs in ((one, other), (other, one)):
        assert relative_error(ours, theirs) < 2e-6
        assert relative_error(decoded(ours), decoded(theirs)) > 3e-3
        assert relative_error(decoded(ours, payload(theirs)), decoded(theirs)) < 1e-3


def test_a_hair_decides_a_channel_s_factor_and_the_other_payload_settles_it() -> None:
    def payload(tensor, like=None):
        return encode(tensor, "s8", direction="forward", like=like)

    outlying = sample((32, 128))
    outlying[:, 3] *= 600
    one, other = apart_by_a_hair(payload, outlying, 3, factors_differ)
    assert payload(one, like=payload(other)) == payload(other)
    assert payload(other, like=payload(one)) == payload(one)


def test_a_payload_that_is_conditioned_without_need_is_not_followed() -> None:
    plain, peaked = sample((32, 128)), sample((32, 128))
    peaked[:, 0] *= 1e4
    for direction in ("forward", "backward"):
        ours = encode(plain, "s8", direction=direction)
        assert flags_differ(ours, encode(peaked, "s8", direction=direction))
        like = encode(peaked, "s8", direction=direction)
        assert encode(plain, "s8", direction=direction, like=like) == ours
    outlying = sample((32, 128))
    outlying[:, 3] *= 600
    ours = encode(outlying, "s8", direction="forward")
    spoilt = bytearray(ours)  # its factors lose all channels but one
    spoilt[HEADER.size : HEADER.size + 256] = struct.pack("<128H", 0x3F80, *[0x5000] * 127)
    assert encode(outlying, "s8", direction="forward", like=spoilt) == ours


@pytest.mark.parametrize("magnitude", [1e-9, 1e-20, 1e12])
@pytest.mark.parametrize("direction", ["forward", "backward", "average"])
def test_magnitude_does_not_matter(magnitude, direction) -> None:
    tensor = sample((70, 128)) * magnitude
    assert relative_error(roundtrip(tensor, "s8", direction), tensor) < 0.007


def test_seal_covers_every_byte() -> None:
    payload = bytearray(encode(sample((3, 128)), "s8", direction="forward"))
    with pytest.raises(CodecError):
        check_seal(payload)
    seal(payload)
    check_seal(payload)
    for place in range(len(payload)):
        damaged = bytearray(payload)
        damaged[place] ^= 1
        with pytest.raises(CodecError):
            check_seal(damaged)


def good_payload(codec="s8") -> bytearray:
    return bytearray(encode(sample((5, 130), OUTLIER), codec, direction="forward"))


def edited(offset: int, data: bytes, **options) -> bytearray:
    payload = good_payload(**options)
    payload[offset : offset + len(data)] = data
    return payload


BF16_NAN, BF16_MINUS_ONE, BF16_HUGE = b"\xc0\x7f", b"\x80\xbf", b"\x7f\x7f"
PRESCALE, BODY = HEADER.size, HEADER.size + 512
HOSTILE = {
    "scale nan": edited(BODY, BF16_NAN),
    "scale negative": edited(BODY, BF16_MINUS_ONE),
    "scale huge": edited(BODY, BF16_HUGE),
    "scale zero": edited(BODY, b"\0\0"),
    "value of no encoder": edited(BODY + 2 * 10, b"\x80"),
    "last value of no encoder": edited(len(good_payload()) - 1, b"\x80"),
    "prescale nan": edited(PRESCALE, BF16_NAN),
    "prescale negative": edited(PRESCALE, BF16_MINUS_ONE),
    "prescale huge": edited(PRESCALE, BF16_HUGE),
    "fp32 nan": edited(HEADER.size, b"\0\0\xc0\x7f", codec="fp32"),
    "fp32 huge": edited(HEADER.size, b"\xff\xff\x7f\x7f", codec="fp32"),
    "bf16 inf": edited(HEADER.size, b"\x80\x7f", codec="bf16"),
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_numbers_are_refused(payload) -> None:
    with pytest.raises(CodecError):
        decode(payload, (5, 130))


def bf16(number: float) -> bytes:
    return struct.pack("<f", number)[2:]


@pytest.mark.parametrize("place", [0, 511, 512, 599])
@pytest.mark.parametrize(("scale", "sane"), [(2.0**20, True), (2.0**21, False), (2.0**40, False)])
def test_scale_and_prescale_are_bounded_together(place, scale, sane) -> None:
    """Each of them may be large, but not so that their product is, wherever they stand."""
    payload = bytearray(encode(sample((600, 128), OUTLIER), "s8", direction="forward"))
    start = HEADER.size + 2 * 128
    tile, index = divmod(place, 512)
    struct.pack_into("2s", payload, HEADER.size + 2 * 42, bf16(2.0**20))
    struct.pack_into("2s", payload, start + tile * TILE_BYTES + 2 * index, bf16(scale))
    if sane:
        assert torch.isfinite(decode(payload, (600, 128))).all()
    else:
        with pytest.raises(CodecError, match="absurd"):
            decode(payload, (600, 128))


def test_nobody_sends_what_would_be_refused() -> None:
    tensor = torch.zeros(600, 128)
    tensor[:, 5] = 1e13  # a large factor
    tensor[0, 9] = 1.0  # a large number beside the others of its channel: a large scale
    with pytest.raises(PoisonedTensor):
        encode(tensor, "s8", direction="forward")
    assert read_header(encode(tensor / 1e3, "s8", direction="forward"), (600, 128)).prescaled


@pytest.mark.parametrize(
    ("above_db", "of_peak", "needed"),
    [(0.1, 0.99, False), (-0.1, 0.03, True), (0.1, 1.01, True), (-math.inf, 0.0, False)],
)
def test_activations_are_scaled_where_their_noise_or_their_peak_is_too_large(
    monkeypatch, above_db, of_peak, needed
) -> None:
    signal = 10 ** ((FORWARD_SNR_DB + above_db) / 10)
    highest = FORWARD_PEAK_TO_RMS * of_peak * math.sqrt(signal / 128)
    found = signal, 12 * 127**2 / 128, highest
    monkeypatch.setattr(conditioning, "sampled_sums", lambda *_: found)
    for wanted in (None, True, False):
        assert conditioning.needed(torch.ones(1, 128), "forward", wanted) is needed
