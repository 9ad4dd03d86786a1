"""How often peers may speak, have us dial them back, and have us punch."""

from protocol.ids import PeerId
from protocol.reachability.budgets import (
    DIALS,
    DIALS_OF_PREFIX,
    MAX_ENTRIES,
    MESSAGES,
    TRIES,
    TRIES_OF_MACHINE,
    TRIES_OF_PEER,
    Budgets,
)

A, B = PeerId("a"), PeerId("b")


def test_who_says_more_than_an_honest_peer_is_not_heard_for_a_while_and_nobody_else() -> None:
    budgets = Budgets()
    assert sum(budgets.hears(A, 0.0) for _ in range(200)) == MESSAGES.burst
    assert budgets.hears(B, 0.0)
    assert not budgets.hears(A, 0.5 / MESSAGES.per_s)
    assert budgets.hears(A, 1 / MESSAGES.per_s)
    assert not budgets.hears(A, 1 / MESSAGES.per_s)


def test_what_is_remembered_is_bounded() -> None:
    budgets = Budgets()
    for number in range(2 * MAX_ENTRIES):
        budgets.hears(PeerId(str(number)), 0.0)
    assert len(budgets._buckets) == MAX_ENTRIES


def test_a_prefix_is_dialled_back_a_few_times_and_then_rarely() -> None:
    budgets, later = Budgets(), 1 / DIALS_OF_PREFIX.per_s
    four = sum(budgets.dials_back(f"11.0.0.{number}", 0.0) for number in range(50))
    six = sum(budgets.dials_back("2a11:0:1:7::1", 0.0) for _ in range(50))
    assert four == six == DIALS_OF_PREFIX.burst
    assert not budgets.dials_back("11.0.0.1", later - 1)
    assert budgets.dials_back("11.0.0.1", later)
    assert not budgets.dials_back("11.0.0.1", later)


def test_all_dials_together_have_a_budget() -> None:
    budgets = Budgets()
    granted = sum(budgets.dials_back(f"11.0.{number}.1", 0.0) for number in range(200))
    assert granted == DIALS.burst
    granted = sum(budgets.dials_back(f"11.1.{number}.1", 10.0) for number in range(200))
    assert granted == 10


def test_nobody_is_dialled_in_our_own_network() -> None:
    budgets = Budgets()
    for host in ("127.0.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "::1", "fe80::1", ""):
        assert not budgets.dials_back(host, 0.0)


def granted(budgets: Budgets, tries: list[tuple[str, str]], now: float = 0.0) -> int:
    return sum(budgets.tries(PeerId(peer), host, now) for peer, host in tries)


def test_one_peer_has_three_attempts_and_then_a_try_a_minute() -> None:
    budgets, later = Budgets(), 1 / TRIES_OF_PEER.per_s
    assert granted(budgets, [("p", "11.0.1.2")] * 50) == TRIES_OF_PEER.burst
    assert granted(budgets, [("p", "11.0.1.2")] * 50, now=later) == 1
    assert budgets.tries(PeerId("q"), "11.0.2.2", later)


def test_invented_peers_that_name_one_machine_share_its_tries() -> None:
    budgets = Budgets()
    four = [(f"p{number}", "11.0.1.2") for number in range(100)]
    assert granted(budgets, four) == TRIES_OF_MACHINE.burst
    six = [(f"p{number}", f"2a11::{number:x}") for number in range(100)]
    assert granted(budgets, six) == TRIES_OF_MACHINE.burst


def test_a_storm_of_many_machines_is_bounded_and_over_soon() -> None:
    budgets = Budgets()
    storm = [(f"p{number}", f"11.{number // 200}.{number % 200}.2") for number in range(1000)]
    assert granted(budgets, storm) == TRIES.burst
    assert granted(budgets, storm[500:], now=10.0) == 10
