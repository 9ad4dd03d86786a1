"""The prober's budget: whom it dials back, and how often."""

from __future__ import annotations

from protocol.reachability.prober import MAX_PREFIXES, OF_ALL, OF_PREFIX, Prober


def test_a_prefix_is_dialled_back_a_few_times_and_then_rarely() -> None:
    prober = Prober()
    assert sum(prober.grants(f"11.0.0.{number}", 0.0) for number in range(50)) == OF_PREFIX.burst
    assert sum(prober.grants("2a11:0:1:7::1", 0.0) for _ in range(50)) == OF_PREFIX.burst
    assert not prober.grants("11.0.0.1", 1 / OF_PREFIX.per_s - 1)
    assert prober.grants("11.0.0.1", 1 / OF_PREFIX.per_s)
    assert not prober.grants("11.0.0.1", 1 / OF_PREFIX.per_s)


def test_all_together_have_a_budget() -> None:
    prober = Prober()
    granted = sum(prober.grants(f"11.0.{number}.1", 0.0) for number in range(200))
    assert granted == OF_ALL.burst
    granted = sum(prober.grants(f"11.1.{number}.1", 10.0) for number in range(200))
    assert granted == 10


def test_nobody_is_dialled_in_our_own_network() -> None:
    prober = Prober()
    for host in ("127.0.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "::1", "fe80::1", ""):
        assert not prober.grants(host, 0.0)


def test_what_is_remembered_is_bounded() -> None:
    prober = Prober()
    for number in range(2 * MAX_PREFIXES):
        prober.grants(f"11.{number // 250}.{number % 250}.1", 100.0 * number)
    assert len(prober._dials) <= MAX_PREFIXES
