"""Choosing the next hop: shares follow speed, failures cost their own peer only."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.next_hop import (
    SUSPEND_AFTER_STRIKES,
    SUSPEND_S,
    NextHop,
)

PEERS = [peer_id_from_key(bytes([n]) * 32) for n in range(6)]
A, B, C = PEERS[:3]


def taught(hop_s: dict[PeerId, float]) -> NextHop:
    """Accounts that have learned how long each replica takes."""
    hops = NextHop()
    hops.update(hop_s)
    for peer, seconds in hop_s.items():
        for _ in range(200):
            hops.settle(peer, seconds)
    return hops


def choices(hops: NextHop, count: int) -> Counter[PeerId | None]:
    return Counter(hops.choose(0.0) for _ in range(count))


def test_nobody_to_choose() -> None:
    hops = NextHop()
    assert hops.choose(0.0) is None
    hops.update([A])
    assert hops.choose(0.0, exclude={A}) is None


@given(st.lists(st.floats(0.05, 5.0), min_size=2, max_size=5))
def test_shares_follow_speed(seconds: list[float]) -> None:
    hop_s = dict(zip(PEERS, seconds, strict=False))
    counts = choices(taught(hop_s), 400)
    total_rate = sum(1 / s for s in hop_s.values())
    for peer, s in hop_s.items():
        assert abs(counts[peer] - 400 / s / total_rate) <= len(hop_s)


def test_equal_replicas_take_turns() -> None:
    counts = choices(taught({A: 1.0, B: 1.0, C: 1.0}), 30)
    assert set(counts.values()) == {10}


def test_a_newcomer_does_not_get_everything_at_once() -> None:
    hops = taught({A: 1.0, B: 1.0})
    choices(hops, 100)
    hops.update([A, B, C])
    counts = choices(hops, 30)
    assert max(counts.values()) <= 11


def test_a_lost_replica_is_forgotten() -> None:
    hops = taught({A: 0.001, B: 1.0})
    hops.update([B])
    assert choices(hops, 5) == {B: 5}
    assert len(hops) == 1


def test_a_refund_undoes_a_charge() -> None:
    hops = taught({A: 1.0, B: 1.0})
    first = hops.choose(0.0)
    assert first is not None
    hops.refund(first)
    assert hops.choose(0.0) == first


def test_timeouts_halve_the_share_then_suspend() -> None:
    hops = taught({A: 1.0, B: 1.0})
    hops.timed_out(A, 0.0)
    assert hops.expected_s(A) == pytest.approx(2.0, rel=0.01)
    counts = choices(hops, 30)
    assert counts[B] == pytest.approx(2 * counts[A], abs=2)
    for _ in range(SUSPEND_AFTER_STRIKES - 1):
        hops.timed_out(A, 10.0)
    assert choices(hops, 10) == {B: 10}
    assert hops.choose(10.0, exclude={B}) is None
    assert hops.choose(10.0 + SUSPEND_S, exclude={B}) == A


def test_a_gradient_in_time_clears_the_strikes() -> None:
    hops = taught({A: 1.0})
    for _ in range(3 * SUSPEND_AFTER_STRIKES):
        hops.timed_out(A, 0.0)
        hops.settle(A, 1.0)
    assert hops.choose(0.0) == A


def test_strangers_change_nothing() -> None:
    hops = taught({A: 1.0})
    for of_stranger in (hops.refund, lambda p: hops.settle(p, 1.0), lambda p: hops.timed_out(p, 0)):
        of_stranger(B)
    assert len(hops) == 1
    assert hops.choose(0.0) == A


@pytest.mark.parametrize("seconds", [0.0, -5.0, 1e-12])
def test_an_impossible_time_is_bounded(seconds: float) -> None:
    hops = taught({A: 1.0, B: 1.0})
    for _ in range(500):
        hops.settle(A, seconds)
    assert hops.expected_s(A) > 0
    assert choices(hops, 20_002)[B] >= 1
