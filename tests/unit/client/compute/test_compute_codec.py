"""The wire codecs: accuracy, refusal of poison, refusal of hostile bytes."""

import math
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from client.compute import conditioning, native
from client.compute.codec import decode, encode
from client.compute.conditioning import (
    BACKWARD_SNR_DB,
    FORWARD_PEAK_TO_RMS,
    FORWARD_SNR_DB,
    HAIR_DB,
    needs_prescale,
    needs_rotation,
)
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import (
    HEADER,
    TILE_BYTES,
    check_seal,
    largest_payload_bytes,
    read_header,
    seal,
)
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


@pytest.mark.parametrize("shape", [(256, 128), (100, 1024), (64, 96), (64, 65), (9, 31, 64)])
@pytest.mark.parametrize(
    ("kind", "direction", "bound"),
    [
        (GAUSSIAN, "forward", 0.007),
        (GAUSSIAN, "backward", 0.007),
        (GAUSSIAN, "average", 0.007),
        (OUTLIER, "forward", 0.007),
        (OUTLIER, "backward", 0.007),
    ],
)
def test_s8_error_is_below_the_bound(shape, kind, direction, bound) -> None:
    tensor = sample(shape, kind)
    assert relative_error(roundtrip(tensor, "s8", direction), tensor) < bound


@pytest.mark.parametrize("shape", [(100_000,), (65_536,), (65_537,), (5,)])
def test_s8_error_of_a_vector(shape) -> None:
    tensor = sample(shape)
    assert relative_error(roundtrip(tensor, "s8", "average"), tensor) < 0.0075


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
@pytest.mark.parametrize("kernel", [True, False])
def test_a_hair_decides_the_conditioning_and_the_other_payload_settles_it(
    direction, kernel, monkeypatch
) -> None:
    if not kernel:
        monkeypatch.setattr(native, "takes", lambda rows: False)

    def payload(tensor, like=None):
        return encode(tensor, "s8", direction=direction, like=like)

    def decoded(tensor, like=None):
        return decode(payload(tensor, like), tensor.shape)

    one, other = apart_by_a_hair(payload, sample((32, 128)), 3, flags_differ)
    for ours, theirs in ((one, other), (other, one)):
        assert relative_error(ours, theirs) < 2e-6
        assert relative_error(decoded(ours), decoded(theirs)) > 3e-3
        assert relative_error(decoded(ours, payload(theirs)), decoded(theirs)) < 1e-3


@pytest.mark.parametrize("kernel", [True, False])
def test_a_hair_decides_a_channel_s_factor_and_the_other_payload_settles_it(
    kernel, monkeypatch
) -> None:
    if not kernel:
        monkeypatch.setattr(native, "takes", lambda rows: False)

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


def test_four_bits_would_miss_the_bound() -> None:
    """The bound has the power to tell eight bits from four."""
    blocks = sample((512, 128))
    scales = blocks.abs().amax(1, keepdim=True) / 7
    four_bits = (blocks / scales).round() * scales
    assert relative_error(four_bits, blocks) > 0.05


@pytest.mark.parametrize("magnitude", [1e-9, 1e-20, 1e12])
@pytest.mark.parametrize("direction", ["forward", "backward", "average"])
def test_magnitude_does_not_matter(magnitude, direction) -> None:
    tensor = sample((70, 128)) * magnitude
    assert relative_error(roundtrip(tensor, "s8", direction), tensor) < 0.007


@pytest.mark.parametrize("codec", ["s8", "bf16", "fp32"])
def test_zeros_stay_zeros(codec) -> None:
    tensor = torch.zeros(3, 200)
    tensor[1] = 1e-38  # denormal territory of the scale: may vanish, must not explode
    decoded = roundtrip(tensor, codec, "forward")
    assert torch.equal(decoded[0], torch.zeros(200))
    assert torch.all(decoded[1].abs() <= 1.01e-38)


@pytest.mark.parametrize("codec", ["s8", "bf16", "fp32"])
@pytest.mark.parametrize("direction", ["forward", "backward", "average"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("place", [0, 4000, -1])
def test_poison_is_not_sent(codec, direction, poison, place) -> None:
    tensor = sample((70, 1024))
    tensor.view(-1)[place] = poison
    with pytest.raises(PoisonedTensor):
        encode(tensor, codec, direction=direction)


def test_encoding_is_a_function_of_the_tensor() -> None:
    """A recomputed boundary must have the same bytes, independent of earlier encodings."""
    tensor = sample((300, 128), OUTLIER)
    first = bytes(encode(tensor, "s8", direction="forward"))
    encode(sample((900, 128)), "s8", direction="forward")
    assert bytes(encode(tensor, "s8", direction="forward")) == first


def test_the_layout_is_tiles_of_scales_then_values() -> None:
    tensor = torch.zeros(513, 128)
    tensor[0, :] = 127.0
    tensor[512, 0] = -254.0
    payload = encode(tensor, "s8", direction="average")
    body = payload[HEADER.size :]
    assert len(body) == TILE_BYTES + 130
    assert bytes(body[:2]) == struct.pack("<H", 0x3F80)  # bf16 1.0
    assert bytes(body[1024 : 1024 + 128]) == bytes([127]) * 128
    assert bytes(body[TILE_BYTES : TILE_BYTES + 2]) == struct.pack("<H", 0x4000)  # bf16 2.0
    assert body[TILE_BYTES + 2] == 256 - 127


def test_out_is_reused_and_need_not_fit() -> None:
    out = bytearray(10)
    tensor = sample((40, 128))
    payload = encode(tensor, "s8", direction="forward", out=out)
    assert payload.obj is out
    assert bytes(payload) == bytes(encode(tensor, "s8", direction="forward"))
    del payload
    smaller = encode(tensor[:2], "s8", direction="forward", out=out)
    assert torch.equal(decode(smaller, (2, 128)), roundtrip(tensor[:2], "s8", "forward"))


def test_largest_payload_bytes_is_a_bound() -> None:
    for shape in SHAPES:
        for codec in ("s8", "bf16", "fp32"):
            for kind in (GAUSSIAN, OUTLIER):
                payload = encode(sample(shape, kind), codec, direction="forward")
                assert len(payload) <= largest_payload_bytes(shape, codec)


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


def good_payload(codec="s8", direction="forward") -> bytearray:
    return bytearray(encode(sample((5, 130), OUTLIER), codec, direction=direction))


def edited(offset: int, data: bytes, **options) -> bytearray:
    payload = good_payload(**options)
    payload[offset : offset + len(data)] = data
    return payload


BF16_NAN, BF16_MINUS_ONE, BF16_HUGE = b"\xc0\x7f", b"\x80\xbf", b"\x7f\x7f"
PRESCALE, BODY = HEADER.size, HEADER.size + 512
HOSTILE = {
    "empty": b"",
    "short": bytes(63),
    "zeros": bytes(2000),
    "magic": edited(0, b"XTP1"),
    "version": edited(4, b"\x02"),
    "codec": edited(5, b"\x07"),
    "other codec": edited(5, b"\x01"),
    "flags": edited(6, b"\xff"),
    "rotated forward": edited(6, b"\x02"),
    "direction": edited(7, b"\x09"),
    "ndim": edited(8, b"\x01"),
    "dtype": edited(9, b"\x01"),
    "block": edited(10, b"\x40\x00"),
    "dims": edited(12, struct.pack("<I", 6)),
    "huge dims": edited(12, b"\xff" * 16),
    "zero dims": edited(12, bytes(8)),
    "truncated": good_payload()[:-1],
    "extra": good_payload() + b"\0",
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
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_hostile_payloads_are_refused(payload, kind) -> None:
    with pytest.raises(CodecError):
        decode(kind(payload), (5, 130))


def bf16(number: float) -> bytes:
    return struct.pack("<f", number)[2:]


@pytest.mark.parametrize("kernel", ["c", "torch"])
@pytest.mark.parametrize("place", [0, 511, 512, 599])
@pytest.mark.parametrize(("scale", "sane"), [(2.0**20, True), (2.0**21, False), (2.0**40, False)])
def test_scale_and_prescale_are_bounded_together(kernel, place, scale, sane, monkeypatch) -> None:
    """Each of them may be large, but not so that their product is, wherever they stand."""
    if kernel == "torch":
        monkeypatch.setattr(native, "VARIANTS", [])
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


def test_expected_codec_and_direction_are_held() -> None:
    payload = good_payload()
    decode(payload, (5, 130), codec="s8", direction="forward")
    with pytest.raises(CodecError):
        decode(payload, (5, 130), codec="fp32")
    with pytest.raises(CodecError):
        decode(payload, (5, 130), direction="backward")


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["s8", "bf16", "fp32"]),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    st.integers(-3, 3),
)
def test_damaged_payloads_decode_sanely_or_are_refused(codec, edits, growth) -> None:
    payload = good_payload(codec=codec)
    for place, value in edits:
        payload[place % len(payload)] = value
    payload = payload[: len(payload) + growth] + bytes(max(0, growth))
    try:
        tensor = decode(payload, (5, 130))
    except CodecError:
        return
    assert tensor.shape == (5, 130)
    assert torch.isfinite(tensor).all()


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data) -> None:
    with pytest.raises(CodecError):
        decode(data, (1, 128))


def test_dims_are_checked_before_anything_is_allocated() -> None:
    payload = edited(12, struct.pack("<2I", 1 << 31, 130))
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode(payload, (5, 130))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "tensor", [torch.empty(0, 3), torch.zeros(3, dtype=torch.float64), torch.zeros(1, 1, 1, 1, 1)]
)
def test_what_cannot_be_encoded(tensor) -> None:
    with pytest.raises(ValueError):
        encode(tensor, "s8", direction="forward")


HALF_HAIR = HAIR_DB / 2


@pytest.mark.parametrize(
    ("probed", "needed"),
    [
        ((FORWARD_SNR_DB + 0.1, FORWARD_PEAK_TO_RMS * 0.99), False),
        ((FORWARD_SNR_DB - 0.1, 1.0), True),
        ((FORWARD_SNR_DB + 0.1, FORWARD_PEAK_TO_RMS * 1.01), True),
        ((math.inf, 0.0), False),
    ],
)
def test_activations_are_scaled_where_their_noise_or_their_peak_is_too_large(
    monkeypatch: pytest.MonkeyPatch, probed: tuple[float, float], needed: bool
) -> None:
    monkeypatch.setattr(conditioning, "_probe", lambda rows: probed)
    for wanted in (None, True, False):
        assert needs_prescale(torch.zeros(1), wanted) is needed


@pytest.mark.parametrize(
    ("below_db", "alone"), [(HALF_HAIR, True), (-HALF_HAIR, False), (0.1, True), (-0.1, False)]
)
def test_within_a_hair_of_a_threshold_another_replicas_choice_is_followed(
    monkeypatch: pytest.MonkeyPatch, below_db: float, alone: bool
) -> None:
    near = abs(below_db) < HAIR_DB
    for decide, threshold in ((needs_prescale, FORWARD_SNR_DB), (needs_rotation, BACKWARD_SNR_DB)):
        snr = threshold - below_db
        monkeypatch.setattr(conditioning, "_probe", lambda rows, snr=snr: (snr, 1.0))
        rows = torch.zeros(1)
        assert decide(rows) is alone
        assert [decide(rows, wanted) for wanted in (True, False)] == (
            [True, False] if near else [alone, alone]
        )
