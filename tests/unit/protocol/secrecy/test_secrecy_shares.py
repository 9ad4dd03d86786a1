"""Shares of a seed: any two thirds and one recover it, fewer do not, false ones are noticed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.secrecy.shares import SHARE_BYTES, deal, recover, share_hash, threshold

SEED = bytes(range(16))


@pytest.mark.parametrize(("members", "needed"), [(3, 3), (4, 3), (8, 6), (16, 11), (32, 22)])
def test_more_than_two_thirds_are_needed(members: int, needed: int) -> None:
    assert threshold(members) == needed


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


def test_a_share_longer_than_the_field_breaks_nothing() -> None:
    shares = dict.fromkeys(range(3), b"\xff" * SHARE_BYTES)
    assert recover(shares, 4) is None or len(recover(shares, 4) or b"") == 16


def test_a_published_hash_is_of_the_share_and_its_place() -> None:
    share = deal(SEED, 4)[0]
    assert share_hash(share, 0) != share_hash(share, 1)
