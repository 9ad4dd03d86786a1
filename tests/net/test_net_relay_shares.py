"""How a relay's rate is shared among prefixes, whatever they send and by what."""

from collections import Counter
from collections.abc import Callable, Iterable

import pytest
import trio
from trio.testing import MockClock

from client.net.relay.shares import MAX_PIECE_BYTES, Shares
from protocol.ids import PeerId

RATE = 1e6


def jain(values: list[int]) -> float:
    """Jain, Chiu and Hawe's index: 1 when all are equal."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


async def run(
    circuits: dict[PeerId, int],
    size_of: Callable[[PeerId], int],
    seconds: float,
    prefix_of: Callable[[PeerId], str] = lambda _: "",
) -> Counter[PeerId]:
    """Let each circuit have one piece waiting at any time, as the driver does."""
    shares, got = Shares(), Counter[PeerId]()
    shares.limit(RATE)

    async def send(member: PeerId) -> None:
        while True:
            await shares.turn((member, prefix_of(member) or member), size_of(member))
            got[member] += size_of(member)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shares.run)
        for member, count in circuits.items():
            for _ in range(count):
                nursery.start_soon(send, member)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return got


async def granted(shares: Shares, senders: Iterable[str], seconds: float) -> list[int]:
    """Let pieces wait, and return which are granted in so many seconds, by their place."""
    found = list[int]()

    async def send(number: int, sender: str) -> None:
        await shares.turn((PeerId(f"{sender} {number}"), sender), MAX_PIECE_BYTES)
        found.append(number)

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for number, sender in enumerate(senders):
                nursery.start_soon(send, number, sender)
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(shares.run)
    return found


@pytest.mark.parametrize("honest_piece", [1_000, 16_000, MAX_PIECE_BYTES])
@pytest.mark.parametrize("greedy_circuits", [1, 30])
async def test_one_greedy_client_among_eight_gets_an_eighth(
    autojump_clock: MockClock, honest_piece: int, greedy_circuits: int
) -> None:
    greedy, seconds = PeerId("greedy"), 10 if honest_piece < MAX_PIECE_BYTES else 60
    circuits = {PeerId(f"honest {n}"): 1 for n in range(7)} | {greedy: greedy_circuits}
    size_of = lambda who: MAX_PIECE_BYTES if who == greedy else honest_piece  # noqa: E731
    got = await run(circuits, size_of, seconds)
    assert jain(list(got.values())) > 0.99
    assert sum(got.values()) == pytest.approx(seconds * RATE, rel=0.03)


@pytest.mark.parametrize("honest_piece", [4_000, MAX_PIECE_BYTES])
async def test_a_thousand_identities_of_one_prefix_share_what_it_gets(
    autojump_clock: MockClock, honest_piece: int
) -> None:
    crowd = {PeerId(f"crowd {n}"): 1 for n in range(1000)}
    honest = {PeerId(f"honest {n}"): 1 for n in range(7)}
    prefix_of = lambda who: "203.0.113" if who in crowd else f"198.51.{who}"  # noqa: E731
    size_of = lambda who: MAX_PIECE_BYTES if who in crowd else honest_piece  # noqa: E731
    got = await run(crowd | honest, size_of, 30, prefix_of=prefix_of)
    together = sum(count for who, count in got.items() if who in crowd)
    assert jain([together, *(got[one] for one in honest)]) > 0.99
    assert sum(got.values()) == pytest.approx(30 * RATE, rel=0.02)


async def test_a_neighbour_waits_for_one_piece_of_whoever_has_many_circuits(
    autojump_clock: MockClock,
) -> None:
    """Or its heartbeats came so late that it was held for dead."""
    shares = Shares()
    shares.limit(MAX_PIECE_BYTES)

    async def keep_sending() -> None:
        while True:
            await shares.turn((PeerId("many"), "203.0.113"), MAX_PIECE_BYTES)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shares.run)
        for _ in range(32):
            nursery.start_soon(keep_sending)
        await trio.sleep(10.5)
        began = trio.current_time()
        await shares.turn((PeerId("one"), "203.0.113"), 1000)
        assert trio.current_time() - began < 3
        nursery.cancel_scope.cancel()


async def test_without_a_limit_nothing_waits(autojump_clock: MockClock) -> None:
    assert len(await granted(Shares(), "a" * 100, 0.1)) == 100


async def test_a_piece_whose_circuit_has_ended_takes_nobodys_turn(
    autojump_clock: MockClock,
) -> None:
    shares = Shares()
    shares.limit(RATE)
    with trio.move_on_after(1.0):
        await shares.turn((PeerId("a"), "a"), MAX_PIECE_BYTES)
    assert await granted(shares, "aab", 10.0) == [2, 0, 1]
    assert not shares._waiting


async def test_who_was_silent_has_saved_nothing(autojump_clock: MockClock) -> None:
    """A member that comes back gets its share from then on, not what it did not use."""
    shares, found = Shares(), Counter[str]()
    shares.limit(RATE)

    async def send(sender: str) -> None:
        while True:
            await shares.turn((PeerId(sender), sender), 10_000)
            found[sender] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shares.run)
        nursery.start_soon(send, "busy")
        await trio.sleep(1.0)
        before = found["busy"]
        nursery.start_soon(send, "back")
        await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    assert before >= 100
    assert 8 <= found["back"] <= 12


async def test_prefixes_are_forgotten_once_others_have_had_as_much(
    autojump_clock: MockClock,
) -> None:
    shares = Shares()
    shares.limit(RATE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shares.run)
        for number in range(1000):
            for share in (f"prefix {number}", "steady"):
                await shares.turn((PeerId(share), share), 1000)
        nursery.cancel_scope.cancel()
    assert len(shares._had) < 5


@pytest.mark.parametrize(("rate", "most"), [(RATE, 18), (10 * RATE, 171), (0.0, 1000)])
async def test_the_rate_may_change(autojump_clock: MockClock, rate: float, most: int) -> None:
    shares = Shares()
    shares.limit(RATE)
    shares.limit(rate)
    got = len(await granted(shares, "a" * 1000, 1.0))
    assert 0.9 * most <= got <= most
