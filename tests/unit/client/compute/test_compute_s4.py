"""Boundary tensors in four bits: what is lost, by which chance, and what is refused."""

import math

import pytest
import torch

from client.compute.auditing import before_coding
from client.compute.codecs import blocks
from client.compute.conditioning import rotate
from client.compute.payload import Direction
from tests.support.codecs import decode, encode
from tests.support.compute_stages import relative_error

DIRECTIONS: list[Direction] = ["forward", "backward"]
KEY = blocks.rounding_key("swarm", 3, 5, 1)
FEW = (3, 5, 128)


def gaussian(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sent(tensor: torch.Tensor, direction: Direction = "backward", key: bytes = KEY) -> bytes:
    return bytes(encode(tensor, "s4", direction=direction, key=key))


def arrived(
    tensor: torch.Tensor, direction: Direction = "backward", key: bytes = KEY
) -> torch.Tensor:
    return decode(sent(tensor, direction, key), tensor.shape, "s4", direction)


def representable(blocks: int) -> torch.Tensor:
    """Numbers that have no rounding error: rotated they are whole ones, up to 7 in each block."""
    values = torch.randint(-7, 8, (blocks, 128), generator=torch.Generator().manual_seed(blocks))
    values[:, 77] = 7
    return rotate(values.float())


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


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("times", [1.0, 2.0**-30, 2.0**30])
def test_numbers_between_which_nothing_lies_stay(direction: Direction, times: float) -> None:
    half = representable(350) * times
    tensor = torch.cat([half, -half])  # with nothing in common
    assert torch.equal(arrived(tensor, direction), tensor)


def test_what_all_rows_have_in_common_is_not_rounded_with_the_rest() -> None:
    rest, common = gaussian((700, 256)), gaussian((256,), seed=4) * 100
    assert relative_error(arrived(rest + common, "forward") - common, rest) < 0.35
    assert relative_error(arrived(rest + common, "backward") - common, rest) > 10


def test_rounding_by_chance_loses_nothing_on_average() -> None:
    tensor = gaussian((4, 128))
    keys = [blocks.rounding_key("swarm", 0, number, 1) for number in range(600)]
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
    def chances(*name: int) -> torch.Tensor:
        key = blocks.rounding_key("swarm", *name, 1)
        return blocks.chances_of(0, 512, key, torch.device("cpu")) / (1 << 16)

    found = chances(3, 5)
    assert (found * (1 << 16)).remainder(1).eq(0.5).all()
    assert 0 < float(found.min()) < 1e-4
    assert 1 - 1e-4 < float(found.max()) < 1
    counts = (found * 16).long().flatten().bincount(minlength=16).float()
    expected = found.numel() / 16
    assert float(((counts - expected).square() / expected).sum()) < 45  # 15 degrees of freedom
    moved = (found.roll(1, 0), *(found.roll(by, 1) for by in (1, 2, 63, 64)))
    limit = 4.5 / 12 / math.sqrt(found.numel())
    for other in (chances(3, 6), chances(4, 5), *moved):
        assert abs(float(((found - 0.5) * (other - 0.5)).mean())) < limit


def test_the_same_key_makes_the_same_bytes_and_another_one_others() -> None:
    tensor = gaussian(FEW)
    names = [("swarm", 3, 5, 1), ("swarn", 3, 5, 1), ("swarm", 4, 5, 1), ("swarm", 3, 6, 1)]
    names += [("swarm", 3, 5, 2), ("swarm", 5, 3, 1), ("swarm", 35, 1, 1)]
    made = [sent(tensor, key=blocks.rounding_key(*name)) for name in names]
    assert len(set(made)) == len(made)
    assert made == [sent(tensor, key=blocks.rounding_key(*name)) for name in names]
    forward = {sent(tensor, "forward", blocks.rounding_key(*name)) for name in names}
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


def test_without_a_step_a_difference_is_what_it_is() -> None:
    assert before_coding(0.25, 0.0) == 0.25
    assert before_coding(0.0, 0.4) == 0.0
    assert before_coding(math.sqrt(2), 0.4) > 1.2  # other tensors stay far apart
