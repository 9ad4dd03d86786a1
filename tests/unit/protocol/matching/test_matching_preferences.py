"""Fixed-point preferences: close to the formulas, bounded, and the same everywhere."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import Stage
from protocol.matching import preferences
from protocol.matching.population import Population, of_nobody
from protocol.matching.preferences import MICRO
from tests.support.matching_examples import costs, manifest, member, peer, population


def rate_of(
    flops: float = 1e9,
    uplink_bytes_per_s: float = 1e9,
    downlink_bytes_per_s: float = 1e9,
    memory_bytes: float = 1e12,
) -> int:
    speed = (flops, uplink_bytes_per_s, downlink_bytes_per_s)
    return preferences.rate(speed, memory_bytes, costs([1e9])[0])


def test_rate_is_the_scarcest_resource() -> None:
    assert rate_of() == MICRO
    assert rate_of(uplink_bytes_per_s=5.0) == MICRO // 2
    assert rate_of(downlink_bytes_per_s=2.5) == MICRO // 4
    assert rate_of(memory_bytes=1e9 - 1) == 0


@pytest.mark.parametrize("absurd", [math.nan, -1.0, 0.0, -math.inf])
@pytest.mark.parametrize("field", ["flops", "uplink_bytes_per_s", "memory_bytes"])
def test_absurd_claims_count_nothing(field: str, absurd: float) -> None:
    assert rate_of(**{field: absurd}) == 0


@pytest.mark.parametrize("times", [1e6, 1e7, math.inf])
def test_boundless_claims_are_bounded(times: float) -> None:
    assert rate_of(times * 1e9, times * 10, times * 10) == preferences.MAX_RATE


@given(st.integers(1, 10**13), st.integers(1, 10**13))
def test_bucket_is_the_rounded_logarithm(here: int, elsewhere: int) -> None:
    exact = math.log(here / elsewhere, 1.1)
    bucket = preferences.log_bucket(here, elsewhere)
    if abs(exact - round(exact)) < 0.49 and abs(exact) < 99:
        assert bucket == round(exact)
    assert abs(bucket) <= preferences.MAX_BUCKET


@pytest.mark.parametrize(("optimizer", "bytes_"), [("adamw", 12), ("muon", 8)])
def test_a_download_takes_as_long_as_the_state_is_large(optimizer: str, bytes_: int) -> None:
    example = manifest(2)
    rule = msgspec.structs.replace(example.optimizer, name=optimizer)
    example = msgspec.structs.replace(example, optimizer=rule)
    newcomer = member(1)
    view = of_nobody(example).evolve({newcomer.peer: newcomer})
    seconds = example.stages[0].parameters * bytes_ / newcomer.downlink_bytes_per_s
    assert view.download_s(newcomer.peer, Stage(0)) == pytest.approx(seconds)


def test_coverage_comes_before_throughput() -> None:
    view = population([member(1)])

    def wish(level: int, replicas: int) -> preferences.Wish:
        return view.wish(peer(1), Stage(0), level=level, fair=MICRO, replicas=replicas, r=2)

    assert wish(100 * MICRO, 1) > wish(0, 2)
    assert wish(1 * MICRO, 2) > wish(2 * MICRO, 2)


def test_an_empty_stage_is_wanted_most_by_those_who_are_fast_there() -> None:
    fast, slow = (preferences.gain(rate, MICRO, level=0, fair=MICRO) for rate in (2, 1))
    assert fast > slow


def test_a_stage_prefers_whom_nobody_else_needs() -> None:
    specialist = Population([member(1), member(2, memory_bytes=1e12)], costs([1e9, 1e9]), 2)
    fair = specialist.fair_level
    only_here = preferences.score(peer(1), Stage(0), rates=(MICRO, 0), fair=fair)
    anywhere = preferences.score(peer(1), Stage(0), rates=(MICRO, MICRO), fair=fair)
    assert only_here > anywhere


@given(st.integers(0, 10**12), st.integers(0, 10**15))
def test_scores_fit_their_field(rate: int, fair: int) -> None:
    score = preferences.score(peer(1), Stage(0), rates=(rate, 1), fair=fair)
    assert 0 <= score < preferences.MAX_SCORE


def test_unmeasured_claims_are_capped_at_twice_the_median() -> None:
    view = population([member(1), member(2), member(3, flops=1e15)])
    assert 1.9 * MICRO < view.rate(peer(3), Stage(0)) <= 2 * MICRO  # the median is rounded down


def test_redundancy_shrinks_to_what_the_population_carries() -> None:
    assert population([member(1)]).redundancy == 1
    assert population([member(n) for n in range(3)]).redundancy == 1
    assert population([member(n) for n in range(4)]).redundancy == 2
    assert population([member(n) for n in range(40)]).redundancy == 2
    assert population([member(n, memory_bytes=0) for n in range(8)]).redundancy == 1
