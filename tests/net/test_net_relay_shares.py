"""How a relay's rate is shared among prefixes, whatever they send and by what."""

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from client.net.relay.shares import MAX_PIECE_BYTES, Shares
from protocol.ids import PeerId

RATE = 1e6


def jain(values: list[int]) -> float:
    """Jain, Chiu and Hawe's index: 1 when all are equal."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


class Relay:
    """A relay whose senders let one piece of each circuit wait at any time, as the driver does."""

    def __init__(self, nursery: trio.Nursery, rate: float = RATE) -> None:
        self.shares, self.got, self._nursery = Shares(), Counter[str](), nursery
        self.shares.limit(rate)
        nursery.start_soon(self.shares.run)

    def send(self, sender: str, size: int = 10_000, share: str = "", circuits: int = 1) -> None:
        for _ in range(circuits):
            self._nursery.start_soon(self._keep_sending, PeerId(sender), share or sender, size)

    async def _keep_sending(self, *of: Any) -> None:
        while True:
            await self.turn(*of)

    async def turn(self, sender: PeerId, share: str, size: int) -> None:
        await self.shares.turn((sender, share), size)
        self.got[sender] += size


@pytest.fixture
def relay(nursery: trio.Nursery) -> Relay:
    return Relay(nursery)


@pytest.mark.parametrize("honest_piece", [1_000, 16_000, MAX_PIECE_BYTES])
@pytest.mark.parametrize("greedy_circuits", [1, 30])
async def test_one_greedy_client_among_eight_gets_an_eighth(
    relay: Relay, autojump_clock: MockClock, honest_piece: int, greedy_circuits: int
) -> None:
    relay.send("greedy", MAX_PIECE_BYTES, circuits=greedy_circuits)
    for number in range(7):
        relay.send(f"honest {number}", honest_piece)
    seconds = 10 if honest_piece < MAX_PIECE_BYTES else 60
    await trio.sleep(seconds)
    assert jain(list(relay.got.values())) > 0.99
    assert relay.got.total() == pytest.approx(seconds * RATE, rel=0.03)


@pytest.mark.parametrize("honest_piece", [4_000, MAX_PIECE_BYTES])
async def test_a_thousand_identities_of_one_prefix_share_what_it_gets(
    relay: Relay, autojump_clock: MockClock, honest_piece: int
) -> None:
    for number in range(1000):
        relay.send(f"crowd {number}", MAX_PIECE_BYTES, "203.0.113")
    for number in range(7):
        relay.send(f"honest {number}", honest_piece)
    await trio.sleep(30)
    together = sum(count for who, count in relay.got.items() if who.startswith("crowd"))
    assert jain([together, *(relay.got[f"honest {number}"] for number in range(7))]) > 0.99
    assert relay.got.total() == pytest.approx(30 * RATE, rel=0.02)


async def test_a_neighbour_waits_for_one_piece_of_whoever_has_many_circuits(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Or its heartbeats came so late that it was held for dead."""
    relay = Relay(nursery, rate=MAX_PIECE_BYTES)
    relay.send("many", MAX_PIECE_BYTES, "203.0.113", circuits=32)
    await trio.sleep(10.5)
    with trio.fail_after(3):
        await relay.turn(PeerId("one"), "203.0.113", 1000)


async def test_a_piece_whose_circuit_has_ended_takes_nobodys_turn(
    relay: Relay, autojump_clock: MockClock
) -> None:
    for _ in range(3):
        await relay.turn(PeerId("busy"), "busy", MAX_PIECE_BYTES)
    with trio.move_on_after(0):
        await relay.turn(PeerId("gone"), "gone", MAX_PIECE_BYTES)
    assert not relay.shares._waiting
    assert "gone" not in relay.got


async def test_who_was_silent_has_saved_nothing(relay: Relay, autojump_clock: MockClock) -> None:
    """A member that comes back gets its share from then on, not what it did not use."""
    relay.send("busy")
    await trio.sleep(1.0)
    assert relay.got["busy"] >= RATE
    relay.send("back")
    await trio.sleep(0.2)
    assert relay.got["back"] == pytest.approx(0.1 * RATE, rel=0.2)


async def test_prefixes_are_forgotten_once_others_have_had_as_much(
    relay: Relay, autojump_clock: MockClock
) -> None:
    for number in range(1000):
        for share in (f"prefix {number}", "steady"):
            await relay.turn(PeerId(share), share, 1000)
    assert len(relay.shares._had) < 5


@pytest.mark.parametrize("rate", [RATE, 10 * RATE, 0.0])
async def test_the_rate_may_change(relay: Relay, autojump_clock: MockClock, rate: float) -> None:
    relay.shares.limit(rate)
    began = trio.current_time()
    for _ in range(1000):
        await relay.turn(PeerId("a"), "a", MAX_PIECE_BYTES)
    took_s = 1000 * MAX_PIECE_BYTES / rate if rate else 0.0
    assert trio.current_time() - began == pytest.approx(took_s, rel=0.03, abs=0.001)
