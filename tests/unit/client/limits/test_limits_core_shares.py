"""Shares of cores: never more than there are, and nobody's part depends on another's claims."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.limits.core_shares import Claim, fair_threads

ME, OTHER, THIRD = 1000, 1001, 1002


@pytest.mark.parametrize(
    ("cores", "others", "threads"),
    [
        (8, [], 8),
        (2, [Claim(ME)], 1),
        (2, [Claim(ME)] * 3, 1),  # more volunteers than cores: one each
        (8, [Claim(ME)], 4),
        (8, [Claim(ME)] * 2, 2),  # the remaining cores are for the nodes
        (8, [Claim(ME, 3)], 5),  # the other's owner chose
        (8, [Claim(ME, 200)], 1),
        (8, [Claim(OTHER)], 4),
        (8, [Claim(OTHER)] * 100, 4),  # another user's part, however many they are
        (8, [Claim(OTHER, 1024)], 4),
        (8, [Claim(OTHER, 1)], 7),  # less than that user's part
        (8, [Claim(OTHER, 1), Claim(THIRD)], 3),
        (8, [Claim(OTHER), Claim(ME)], 2),
    ],
)
def test_shares(cores: int, others: list[Claim], threads: int) -> None:
    assert fair_threads(cores, ME, others) == threads


claims = st.lists(
    st.builds(Claim, st.sampled_from([ME, OTHER, THIRD]), st.sampled_from([0, 0, 1, 3, 1000])),
    max_size=12,
)


@given(st.integers(1, 256), claims)
def test_a_user_keeps_an_even_part_whatever_others_claim(cores: int, others: list[Claim]) -> None:
    own = [claim for claim in others if claim.user == ME]
    users = len({ME, *(claim.user for claim in others)})
    threads = fair_threads(cores, ME, others)
    assert threads >= 1
    assert threads >= fair_threads(max(1, cores // users), ME, own) - 1


@given(st.integers(1, 64), st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_shares_never_exceed_the_cores(cores: int, volunteers: list[int]) -> None:
    """``volunteers``: how many each user runs; one thread each is the least there can be."""
    users = [user for user, count in enumerate(volunteers) for _ in range(count)]
    threads = [
        fair_threads(cores, user, [Claim(other) for j, other in enumerate(users) if j != i])
        for i, user in enumerate(users)
    ]
    for user, count in enumerate(volunteers):
        own = sum(number for number, whose in zip(threads, users, strict=True) if whose == user)
        assert own <= max(cores / len(volunteers), count)
