"""How often peers may make us punch."""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.punching.allowance import OF_ALL, OF_MACHINE, OF_PEER, Allowance

PEER = PeerId("p")


def granted(allowance: Allowance, tries: list[tuple[str, str]], now: float = 0.0) -> int:
    return sum(allowance.grants(PeerId(peer), host, now) for peer, host in tries)


def test_one_peer_has_three_attempts_and_then_a_try_a_minute() -> None:
    allowance = Allowance()
    assert granted(allowance, [("p", "11.0.1.2")] * 50) == OF_PEER.burst
    assert granted(allowance, [("p", "11.0.1.2")] * 50, now=1 / OF_PEER.per_s) == 1
    assert allowance.grants(PeerId("q"), "11.0.2.2", 1 / OF_PEER.per_s)


def test_invented_peers_that_name_one_machine_share_its_tries() -> None:
    allowance = Allowance()
    four = [(f"p{number}", "11.0.1.2") for number in range(100)]
    assert granted(allowance, four) == OF_MACHINE.burst
    six = [(f"p{number}", f"2a11::{number:x}") for number in range(100)]
    assert granted(allowance, six) == OF_MACHINE.burst


def test_a_storm_of_many_machines_is_bounded_and_over_soon() -> None:
    allowance = Allowance()
    storm = [(f"p{number}", f"11.{number // 200}.{number % 200}.2") for number in range(10_000)]
    assert granted(allowance, storm) == OF_ALL.burst
    assert granted(allowance, storm[5000:], now=10.0) == 10
