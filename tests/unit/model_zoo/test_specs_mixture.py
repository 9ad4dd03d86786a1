"""Shares of a mixture: exact to within one sample, from a sample's number alone."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.mixture import MOST_PARTS, MOST_SHARES, Mixture, Part, Schedule
from model_zoo.specs.windows import Windows, leaves_of

WEIGHTS = st.lists(st.one_of(st.integers(1, 3), st.integers(1, 300)), min_size=1, max_size=12)
FIRST = [0, 0, 0, 1, 0, 0, 1, 0, 0, 2]
STARTS = [280, 96, 248, 232, 144, 312]


def part(number: int, tokens: int, weight: int, learned: int | None = None) -> Part:
    width = 2 if learned is None else 4
    return Part(f"part {number}", tokens * width, f"{number:064x}", weight, learned)


def mixed(*parts: Part, **other: Any) -> DataSpec:
    size = sum(each.size_bytes for each in parts)
    return DataSpec("mixed", size, "ab" * 32, parts=parts, **other)


@given(WEIGHTS)
def test_every_prefix_has_the_shares_to_within_one_sample(weights: list[int]) -> None:
    schedule, total = Schedule(weights), sum(weights)
    counts = [0] * len(weights)
    for sample in range(2 * total):
        chosen, number = schedule(sample)
        assert number == counts[chosen]
        counts[chosen] += 1
        seen = sample + 1
        ahead = [had * total - seen * w for had, w in zip(counts, weights, strict=True)]
        assert all(-total < each < total for each in ahead)


@pytest.mark.parametrize(
    "weights",
    [[1] * MOST_PARTS, [MOST_SHARES - 1, 1], [MOST_SHARES - 63] + [1] * 63, [1024] * MOST_PARTS],
)
def test_a_cycle_has_each_part_as_often_as_its_weight(weights: list[int]) -> None:
    schedule, total = Schedule(weights), sum(weights)
    counts = Counter(schedule(sample)[0] for sample in range(total))
    assert [counts[number] for number in range(len(weights))] == weights
    far = 10**15 // total * total
    assert schedule(far) == (0, far // total * weights[0])


@pytest.mark.parametrize("weights", [[], [0, 1], [-1, 2], [1] * (MOST_PARTS + 1), [MOST_SHARES, 1]])
def test_other_weights_have_no_cycle(weights: list[int]) -> None:
    with pytest.raises(ValueError, match=r"no cycle|empty"):
        Schedule(weights)


def test_it_is_the_same_in_every_release() -> None:
    assert [Schedule([7, 2, 1])(sample)[0] for sample in range(10)] == FIRST
    mixture = Mixture([part(1, 200, 1), part(2, 400, 2)], 2, 16)
    assert [mixture.training_start(sample, seed=1) for sample in range(6)] == STARTS


def test_every_window_of_a_part_comes_once_before_any_twice_and_held_out_ones_never() -> None:
    parts = [part(1, 401, 5), part(2, 3205, 2), part(3, 37, 1)]
    mixture = Mixture(parts, 2, 16)
    alone = [Windows(each.size_bytes // 2, 16, each.digest) for each in parts]
    schedule, begins = Schedule([5, 2, 1]), [0, 401, 3606]
    read: list[list[int]] = [[], [], []]
    held_out: list[set[int]] = [set(), set(), set()]
    for sample in range(8 * 120):
        number, _ = schedule(sample)
        read[number].append(mixture.training_start(sample, seed=3) - begins[number])
        held_out[number].add(mixture.held_out_start(sample) - begins[number])
    for had, out, windows in zip(read, held_out, alone, strict=True):
        assert had == [windows.training_start(n, seed=3) for n in range(len(had))]
        for epoch in range(0, len(had) - windows.training + 1, windows.training):
            assert len(set(had[epoch : epoch + windows.training])) == windows.training
        assert len(out) == windows.held_out
        assert not out & set(had)


def test_a_window_over_the_end_of_a_leaf_needs_both() -> None:
    mixture = Mixture([part(1, 131_072 - 10, 1), part(2, 1000, 99)], 2, 16)
    needed = {tuple(leaves_of(mixture.training_start(n, 1), 16, 2)) for n in range(100)}
    assert (0, 1) in needed


def test_a_part_needs_a_window_to_train_on_and_one_to_hold_out() -> None:
    data = mixed(part(1, 1000, 1), part(2, 32, 1))
    assert not data.holds_samples(16)
    assert data.holds_samples(15)
    with pytest.raises(ValueError, match="32 tokens have no two windows of 16"):
        data.windows(16)


def test_epochs_are_counted_in_what_is_not_held_out() -> None:
    data = mixed(part(1, 161, 3), part(2, 1601, 1))
    assert data.epochs(360, 16) == [30.0, 1.0]
    assert [data.part_of(n) for n in range(2)] == [data.parts[0], data.parts[0]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("parts", "other", "words"),
    [
        ([part(1, 100, 2), part(2, 100, 4)], {}, "common divisor"),
        ([part(1, 100, 1), part(1, 100, 2)], {}, "two parts are the same"),
        ([part(1, 100, 1), Part("odd", 201, "f" * 64, 2)], {"size_bytes": 402}, "add up"),
        ([part(1, 100, 1), Part("odd", 201, "f" * 64, 2)], {}, "within a token"),
        ([part(1, 100, 1), part(2, 100, MOST_SHARES)], {}, "more than 65536"),
        ([part(1, 100, 1), part(2, 100, 1)], {"size_bytes": 398}, "do not add up to the data"),
        ([part(1, 33, 1, 20), part(2, 33, 2, 20)], {}, "of others everything"),
        ([part(1, 33, 1), part(2, 33, 2)], {"answers": Answers(16, 40)}, "of others everything"),
        (
            [part(1, 33, 1, 20), part(2, 33, 2, 20)],
            {"answers": Answers(16, 41)},
            "answers of the parts do not add up",
        ),
        (
            [part(1, 33, 1, 20), part(2, 35, 2, 20)],
            {"answers": Answers(16, 40)},
            "within a window of conversations",
        ),
        (
            [part(1, 33, 1, 1), part(2, 33, 2, 20)],
            {"answers": Answers(16, 21)},
            "1 of 33 tokens are no answers",
        ),
    ],
)
def test_parts_that_contradict_themselves_are_refused(
    parts: list[Part], other: dict[str, Any], words: str
) -> None:
    size = other.pop("size_bytes", sum(each.size_bytes for each in parts))
    if "answers" in other and parts[0].learned is None:
        size, parts = 264, [msgspec.structs.replace(each, size_bytes=132) for each in parts]
    with pytest.raises(ValueError, match=words):
        DataSpec("mixed", size, "ab" * 32, parts=tuple(parts), **other)
