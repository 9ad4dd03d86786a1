"""S8, bf16 and fp32: accuracy; and the seal."""

from itertools import product

import pytest
import torch

from client.compute.codec import decode, encode
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import check_seal, seal
from tests.support.compute_stages import relative_error

SHAPES = [(1,), (127,), (70_000,), (3, 5, 128), (4, 600, 128), (2, 3, 65), (600, 256), (1, 1, 1)]
GAUSSIAN, OUTLIER = "gaussian", "one channel x60"


def sample(shape: tuple[int, ...], kind: str = GAUSSIAN) -> torch.Tensor:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    if kind == OUTLIER:
        tensor[..., shape[-1] // 3] *= 60
    return tensor


def roundtrip(tensor, codec, direction):
    return decode(encode(tensor, codec, direction), tensor.shape, codec, direction)


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
    # rotated, a number alone in its group is rounded 64 times alike
    bound = 0.0085 if shape[-1] % 64 == 1 and direction != "average" else 0.0075
    assert relative_error(roundtrip(tensor, "s8", direction), tensor) < bound


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


def test_nobody_sends_what_would_be_refused() -> None:
    """What all rows have in common has the bound of the numbers, though nothing else is left."""
    allowed = torch.full((600, 128), 2.0**46)
    assert torch.equal(roundtrip(allowed, "s8", "forward"), allowed)
    with pytest.raises(PoisonedTensor):
        encode(2 * allowed, "s8", direction="forward")
