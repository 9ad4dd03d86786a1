"""Token buckets: never more than the rate and one burst, of each key and of all together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.token_bucket import Rate, TokenBucket, TokenBuckets


@given(
    rate=st.integers(1, 10**9),
    burst=st.integers(0, 10**8),
    asked=st.lists(st.tuples(st.integers(0, 10**8), st.floats(0, 100)), max_size=30),
)
def test_never_more_than_the_rate_and_one_burst(
    rate: int, burst: int, asked: list[tuple[int, float]]
) -> None:
    bucket, now, went, last = TokenBucket(rate, burst, 0.0), 0.0, 0, 0.0
    for size_bytes, pause_s in asked:
        now += pause_s
        goes = now + bucket.reserve(size_bytes, now)
        went += size_bytes
        assert went <= burst + rate * goes + 1e-6 * (went + rate * goes) + 1
        assert goes >= last - 1e-6 * (1 + last)  # nobody overtakes
        last = goes


@given(rate=st.integers(1, 10**9), sizes=st.lists(st.integers(1, 10**7), min_size=1, max_size=30))
def test_the_rate_is_used_while_there_is_work(rate: int, sizes: list[int]) -> None:
    bucket, now, burst = TokenBucket(rate, 1000, 0.0), 0.0, 1000
    for size_bytes in sizes:
        now += bucket.reserve(size_bytes, now)
    assert now == pytest.approx(max(0, sum(sizes) - burst) / rate, rel=1e-6, abs=1e-6)


def test_what_there_is_not_enough_of_is_not_taken() -> None:
    bucket = TokenBucket(1.0, 3, 0.0)
    assert not bucket.take(4, 0.0)
    assert bucket.take(3, 0.0)
    assert not bucket.take(1, 0.9)
    assert bucket.take(1, 1.0)
    assert not bucket.take(1, 0.5), "a clock that went back earns nothing"


OF_EACH, OF_ALL = Rate(0.5, 2), Rate(1.0, 3)


def taken(buckets: TokenBuckets[str], keys: str, now: float) -> list[bool]:
    return [buckets.take({key: OF_EACH, "all": OF_ALL}, now) for key in keys]


def test_a_token_is_taken_of_every_bucket_or_of_none() -> None:
    buckets = TokenBuckets[str](10)
    assert taken(buckets, "aaab", 0.0) == [True, True, False, True]
    assert taken(buckets, "bc", 0.0) == [False, False], "all together have had three"
    assert taken(buckets, "bc", 1.0) == [True, False], "what b was refused it still has"
    assert taken(buckets, "a", 2.0) == [True]


def test_the_bucket_unused_for_longest_is_forgotten() -> None:
    buckets = TokenBuckets[str](2)
    for key in ("a", "a", "b", "a", "c"):
        buckets.take({key: OF_EACH}, 0.0)
    assert not buckets.has("a", OF_EACH, 0.0)
    assert [buckets.take({"b": OF_EACH}, 0.0) for _ in range(3)] == [True, True, False]


def test_how_long_a_reservation_would_wait_is_known_and_reserves_nothing() -> None:
    bucket = TokenBucket(10.0, 20, 0.0)
    assert bucket.wait_s(15, 0.0) == 0.0
    assert bucket.wait_s(25, 0.0) == 0.5
    assert bucket.reserve(25, 0.0) == 0.5
    assert bucket.wait_s(5, 0.0) == 1.0
    assert bucket.wait_s(5, 0.75) == 0.25
    assert bucket.has(5, 1.0)
    assert not bucket.has(6, 1.0)
