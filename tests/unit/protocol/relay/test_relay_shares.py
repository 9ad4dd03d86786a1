"""How a relay's rate is shared: by member, whatever pieces and circuits they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from protocol.ids import PeerId
from protocol.relay.shares import MAX_PIECE_BYTES, Shares

RATE = 1e6


def jain(values: list[int]) -> float:
    """Jain, Chiu and Hawe's index: 1 when all are equal."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def run(
    circuits: dict[PeerId, int],
    size_of: Callable[[PeerId], int],
    seconds: float,
    rate: float = RATE,
) -> Counter[PeerId]:
    """Let each circuit have one piece waiting at any time, as the driver does."""
    shares, now, got = Shares(rate, 0.0), 0.0, Counter[PeerId]()
    waiting = {}
    for member, count in circuits.items():
        for number in range(count):
            waiting[shares.ask(member, number, size_of(member))] = (member, number)
    while True:
        due = shares.next_deadline()
        assert due is not None
        now = max(now, due)
        if now > seconds:
            return got
        for ticket in shares.granted(now):
            member, number = waiting.pop(ticket)
            got[member] += size_of(member)
            waiting[shares.ask(member, number, size_of(member))] = (member, number)


@pytest.mark.parametrize("honest_piece", [1_000, 16_000, MAX_PIECE_BYTES])
@pytest.mark.parametrize("greedy_circuits", [1, 30])
def test_one_greedy_client_among_eight_gets_an_eighth(
    honest_piece: int, greedy_circuits: int
) -> None:
    greedy = PeerId("greedy")
    circuits = {PeerId(f"honest {n}"): 1 for n in range(7)} | {greedy: greedy_circuits}
    got = run(circuits, lambda who: MAX_PIECE_BYTES if who == greedy else honest_piece, 60.0)
    assert jain(list(got.values())) > 0.99
    assert sum(got.values()) == pytest.approx(60 * RATE, rel=0.02)


def test_one_alone_gets_the_whole_rate() -> None:
    got = run({PeerId("a"): 1}, lambda _: MAX_PIECE_BYTES, 10.0)
    assert got[PeerId("a")] == pytest.approx(10 * RATE, rel=0.03)


def test_a_members_circuits_take_turns() -> None:
    shares = Shares(RATE, 0.0)
    many = [shares.ask(PeerId("a"), "long", 1000) for _ in range(5)]
    one = shares.ask(PeerId("a"), "short", 1000)
    granted = shares.granted(100.0)
    assert granted.index(one) == 1
    assert sorted(granted) == [*many, one]


def test_without_a_limit_nothing_waits() -> None:
    shares = Shares(0, 0.0)
    tickets = [shares.ask(PeerId("a"), 1, MAX_PIECE_BYTES) for _ in range(1000)]
    assert shares.granted(0.0) == tickets
    assert shares.next_deadline() is None


def test_a_withdrawn_piece_costs_nothing_and_others_go_on() -> None:
    shares = Shares(RATE, 0.0)
    first = shares.ask(PeerId("a"), 1, MAX_PIECE_BYTES)
    gone = shares.ask(PeerId("a"), 2, MAX_PIECE_BYTES)
    last = shares.ask(PeerId("b"), 1, MAX_PIECE_BYTES)
    shares.withdraw(gone)
    assert set(shares.granted(10.0)) | set(shares.granted(20.0)) == {first, last}
    assert shares.next_deadline() is None


def test_who_was_silent_has_saved_nothing() -> None:
    """A member that comes back gets its share from then on, not what it did not use."""
    shares = Shares(RATE, 0.0)
    for _ in range(200):
        shares.ask(PeerId("busy"), 1, 10_000)
    now = 0.0
    for _ in range(100):
        now += 0.01
        shares.granted(now)
    for _ in range(50):
        shares.ask(PeerId("back"), 1, 10_000)
    granted = []
    for _ in range(20):
        now += 0.01
        granted += shares.granted(now)
    back = [ticket for ticket in granted if ticket > 200]
    assert 8 <= len(back) <= 12


def test_tags_do_not_pile_up() -> None:
    shares = Shares(0, 0.0)
    for number in range(1000):
        shares.ask(PeerId(f"member {number}"), 1, 1000)
        shares.granted(float(number))
    assert len(shares._finished) <= 1000
    assert not shares._members


def test_the_rate_may_change() -> None:
    shares = Shares(RATE, 0.0)
    for _ in range(100):
        shares.ask(PeerId("a"), 1, MAX_PIECE_BYTES)
    shares.granted(0.0)
    shares.set_rate(10 * RATE, 0.0)
    before = len(shares.granted(1.0))
    assert before * MAX_PIECE_BYTES <= 10 * RATE * 1.2
    shares.set_rate(0, 1.0)
    assert shares.granted(1.0)
    assert shares.next_deadline() is None
