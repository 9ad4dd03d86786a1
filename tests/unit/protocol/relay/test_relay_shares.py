"""How a relay's rate is shared among prefixes, whatever they send and by what."""

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
    prefix_of: Callable[[PeerId], str] = lambda _: "",
) -> Counter[PeerId]:
    """Let each circuit have one piece waiting at any time, as the driver does."""

    def ask(member: PeerId) -> int:
        return shares.ask(prefix_of(member) or member, size_of(member))

    shares, now, got = Shares(RATE, 0.0), 0.0, Counter[PeerId]()
    waiting = {ask(member): member for member, count in circuits.items() for _ in range(count)}
    while True:
        due = shares.next_deadline()
        assert due is not None
        now = max(now, due)
        if now > seconds:
            return got
        for ticket in shares.granted(now):
            member = waiting.pop(ticket)
            got[member] += size_of(member)
            waiting[ask(member)] = member


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


@pytest.mark.parametrize("honest_piece", [1_000, MAX_PIECE_BYTES])
def test_a_thousand_identities_of_one_prefix_share_what_it_gets(honest_piece: int) -> None:
    crowd = {PeerId(f"crowd {n}"): 1 for n in range(1000)}
    honest = {PeerId(f"honest {n}"): 1 for n in range(7)}
    prefix_of = lambda who: "203.0.113" if who in crowd else f"198.51.{who}"  # noqa: E731
    size_of = lambda who: MAX_PIECE_BYTES if who in crowd else honest_piece  # noqa: E731
    got = run(crowd | honest, size_of, 300.0, prefix_of=prefix_of)
    together = sum(count for who, count in got.items() if who in crowd)
    assert jain([together, *(got[one] for one in honest)]) > 0.99
    assert sum(got.values()) == pytest.approx(300 * RATE, rel=0.02)


def test_the_circuits_of_one_sender_take_turns() -> None:
    """Each lets one piece wait at a time, and the next one once that is granted."""
    shares, granted = Shares(RATE, 0.0), list[str]()
    waiting = {shares.ask(PeerId("a"), MAX_PIECE_BYTES): name for name in ("one", "two", "three")}
    for second in range(9):
        for ticket in shares.granted(float(second)):
            granted.append(name := waiting.pop(ticket))
            waiting[shares.ask(PeerId("a"), MAX_PIECE_BYTES)] = name
    assert granted == ["one", "two", "three"] * (len(granted) // 3) + granted[: len(granted) % 3]


def test_without_a_limit_nothing_waits() -> None:
    shares = Shares(0, 0.0)
    tickets = [shares.ask(PeerId("a"), MAX_PIECE_BYTES) for _ in range(1000)]
    assert shares.granted(0.0) == tickets
    assert shares.next_deadline() is None


def test_a_withdrawn_piece_is_not_granted_and_others_go_on() -> None:
    shares = Shares(RATE, 0.0)
    gone, later, first = (shares.ask(sender, MAX_PIECE_BYTES) for sender in "aab")
    shares.withdraw(gone)
    assert [*shares.granted(10.0), *shares.granted(20.0)] == [first, later]
    assert shares.next_deadline() is None


def test_who_was_silent_has_saved_nothing() -> None:
    """A member that comes back gets its share from then on, not what it did not use."""
    shares = Shares(RATE, 0.0)
    for _ in range(200):
        shares.ask(PeerId("busy"), 10_000)
    now = 0.0
    for _ in range(100):
        now += 0.01
        shares.granted(now)
    for _ in range(50):
        shares.ask(PeerId("back"), 10_000)
    granted = []
    for _ in range(20):
        now += 0.01
        granted += shares.granted(now)
    back = [ticket for ticket in granted if ticket > 200]
    assert 8 <= len(back) <= 12


def test_prefixes_are_forgotten_once_others_have_had_as_much() -> None:
    shares, now = Shares(RATE, 0.0), 0.0
    for number in range(1000):
        shares.ask(f"prefix {number}", 1000)
        now += 1.0
        shares.granted(now)
        shares.ask(PeerId("steady"), 1000)
        now += 1.0
        shares.granted(now)
    assert len(shares._had) < 5


def test_the_rate_may_change() -> None:
    shares = Shares(RATE, 0.0)
    for _ in range(100):
        shares.ask(PeerId("a"), MAX_PIECE_BYTES)
    shares.granted(0.0)
    shares.set_rate(10 * RATE, 0.0)
    before = len(shares.granted(1.0))
    assert before * MAX_PIECE_BYTES <= 10 * RATE * 1.2
    shares.set_rate(0, 1.0)
    assert shares.granted(1.0)
    assert shares.next_deadline() is None
