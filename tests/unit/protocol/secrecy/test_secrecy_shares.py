"""Shares of a seed: any two thirds and one recover it, fewer do not, false ones are noticed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.secrecy.shares import SHARE_BYTES, deal, recover, threshold

SEED = bytes(range(16))


@given(seed=st.binary(min_size=16, max_size=16), members=st.integers(3, 32), data=st.data())
def test_any_that_are_enough_recover_the_seed(
    seed: bytes, members: int, data: st.DataObject
) -> None:
    shares = dict(enumerate(deal(seed, members)))
    there = data.draw(st.permutations(range(members)))[: threshold(members)]
    assert recover({place: shares[place] for place in there}, members) == seed
    assert all(len(share) == SHARE_BYTES for share in shares.values())


def test_fewer_recover_nothing() -> None:
    shares = dict(enumerate(deal(SEED, 8)))
    assert recover(dict(itertools.islice(shares.items(), 5)), 8) is None


@pytest.mark.parametrize("place", range(3))
def test_a_false_share_gives_another_seed_or_none(place: int) -> None:
    shares = dict(enumerate(deal(SEED, 4)[:3]))
    shares[place] = bytes(17)
    assert recover(shares, 4) != SEED
