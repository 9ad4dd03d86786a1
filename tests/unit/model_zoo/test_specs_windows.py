"""The order of samples: each window once an epoch, held-out ones never, the same everywhere."""

from itertools import pairwise

import pytest

from model_zoo.specs import windows as ordering
from model_zoo.specs.windows import (
    BLOCK_TOKENS,
    GROUP_BLOCKS,
    MOST_HELD_OUT,
    EpochOrder,
    Permutation,
    Windows,
    window_count,
)

DIGEST = "ab" * 32
FIRST = [400, 629, 285, 900, 440, 227]
FAR = 906877367809030


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 256, 257, 1000, 4095])
def test_a_permutation_has_every_place_once(size: int) -> None:
    order = Permutation(size, "any")
    assert sorted(map(order, range(size))) == list(range(size))


def test_it_is_the_same_in_every_release() -> None:
    assert [Permutation(1000, "volunteer")(place) for place in range(6)] == FIRST
    assert Permutation(10**15, "volunteer")(123_456_789) == FAR


@pytest.mark.parametrize("place", [-1, 10, 11])
def test_other_places_are_refused(place: int) -> None:
    with pytest.raises(ValueError, match="not one of 10"):
        Permutation(10, "any")(place)


def test_no_window_twice_before_all_once_and_held_out_ones_never() -> None:
    windows = Windows(10_001, 16, DIGEST)
    assert windows.training + windows.held_out == window_count(10_001, 16) == 625
    held_out = {windows.held_out_start(sample) for sample in range(3 * windows.held_out)}
    assert len(held_out) == windows.held_out == 62
    epochs = []
    for epoch in range(2):
        first = epoch * windows.training
        starts = [windows.training_start(first + n, seed=1) for n in range(windows.training)]
        assert len(set(starts)) == windows.training
        assert not set(starts) & held_out
        epochs.append(starts)
    assert epochs[0] != epochs[1]
    assert {*epochs[0], *held_out} == set(range(0, 10_000, 16))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 16, 17, 31, 32, 33, 47, 48, 400, 403])
def test_the_order_of_an_epoch_has_every_window_once(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where blocks and groups do not come out even."""
    monkeypatch.setattr(ordering, "GROUP_BLOCKS", 4)
    order = EpochOrder(count, 4, "any")
    assert sorted(map(order, range(count))) == list(range(count))


def test_samples_that_follow_one_another_are_from_a_few_places() -> None:
    """They are fetched once; in any order of all windows each sample would be in a part of its
    own."""
    windows = Windows(10**10, 1024, DIGEST)
    first = 5_000_000
    starts = [windows.training_start(first + n, seed=1) for n in range(4000)]
    blocks = {start // BLOCK_TOKENS for start in starts}
    assert GROUP_BLOCKS // 2 < len(blocks) < 2 * GROUP_BLOCKS
    spread = [abs(a - b) for a, b in pairwise(starts)]
    assert 0.9 < sum(spread) / len(spread) / (10**10 / 3) < 1.1


def test_what_is_held_out_does_not_depend_on_the_run() -> None:
    windows = Windows(10_001, 16, DIGEST)
    assert windows.training_start(0, seed=1) != windows.training_start(0, seed=2)
    other = Windows(10_001, 16, "cd" * 32)
    same = [windows.held_out_start(n) == other.held_out_start(n) for n in range(62)]
    assert sum(same) < 10


def test_ten_terabytes_hold_out_little() -> None:
    windows = Windows(5 * 10**12, 4096, DIGEST)
    assert windows.held_out == MOST_HELD_OUT
    assert 0 <= windows.training_start(10**9, seed=1) <= 5 * 10**12 - 4097


def test_a_window_needs_a_target_for_every_input() -> None:
    assert [window_count(tokens, 16) for tokens in (0, 1, 16, 17, 32, 33)] == [0, 0, 0, 1, 1, 2]
    with pytest.raises(ValueError, match="no two windows"):
        Windows(32, 16, DIGEST)
