"""Where a member that nobody can dial keeps its reservations."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from client.net.relay import reaching
from client.net.relay.reaching import RELAYS, REVIEW_S, Reaching
from protocol.pace import ASIDE_S
from tests.support.protocol_examples import peer

ME, R1, R2, R3, R4 = (peer(number) for number in range(5))
PREFIXES = {"p": "11.0.1", "q": "11.0.2", "r": "11.0.3"}


class Relays:
    """Relays that answer when the test says so; stands for the network, and is near all of them."""

    peer_id = ME

    def __init__(self, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reaching, "agreed", self._agreed)
        self.reaching = Reaching(self, nursery)  # type: ignore[arg-type]
        self.asked: list[str] = []
        """Those that have not answered yet."""
        self._answers: dict[str, tuple[trio.Event, list[Any]]] = {}

    def direct(self, relay: str) -> Any:
        ended, session = trio.Event(), SimpleNamespace(closed=True)
        return SimpleNamespace(peer=relay, ip="", session=session, ended=ended)

    async def _agreed(self, links: object, connection: Any, message: object) -> Any:
        self.asked.append(connection.peer)
        done, places = self._answers[connection.peer] = trio.Event(), []
        await done.wait()
        self.asked.remove(connection.peer)
        return places.pop() if places else None

    async def update(self, relays: Mapping[str, str], *, needed: bool = True) -> None:
        at = {
            who: [f"/ip4/{PREFIXES[prefix]}.7/tcp/4001/p2p/{who}"] for who, prefix in relays.items()
        }
        self.reaching.update(at, needed=needed)  # type: ignore[arg-type]
        await wait_all_tasks_blocked()

    async def answer(self, granted: bool, *relays: str) -> None:
        for relay in relays:
            done, places = self._answers[relay]
            if granted:
                end = trio.Event()
                stream = SimpleNamespace(receive_some=lambda _, end=end: end.wait(), reset=end.set)
                places.append(stream)
            done.set()
        await wait_all_tasks_blocked()


@pytest.fixture
def world(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Relays:
    return Relays(nursery, monkeypatch)


@pytest.mark.parametrize(
    ("relays", "asked"),
    [
        ({}, []),
        ({R1: "p"}, [R1]),
        ({R1: "p", R2: "q", R3: "r"}, [R1, R2]),
        ({R1: "p", R2: "p", R3: "q"}, [R1, R3]),
        ({R1: "p", R2: "p"}, [R1, R2]),
        ({ME: "p"}, []),
    ],
)
async def test_two_relays_of_different_prefixes_are_asked(
    world: Relays, relays: dict[str, str], asked: list[str], autojump_clock: MockClock
) -> None:
    await world.update(relays, needed=False)
    assert world.asked == [], "who is dialled reserves nowhere"
    for _ in range(2):
        await world.update(relays)
        assert sorted(world.asked) == sorted(asked)
    await world.answer(True, *asked)
    assert world.reaching.relays == tuple(sorted(asked))
    assert len(world.reaching.addresses) == len(asked) <= RELAYS
    await world.update(relays, needed=False)
    assert world.reaching.relays == ()


async def test_a_reservation_goes_on_where_it_would_be_made_now(
    world: Relays, autojump_clock: MockClock
) -> None:
    """Whom work has proven is among the best; who was there before the others is so no more."""
    both = tuple(sorted((R1, R2)))
    await world.update({R1: "p", R2: "q"})
    await world.answer(True, R1, R2)
    for _ in range(3):
        await trio.sleep(REVIEW_S)
        await world.update({R1: "p", R2: "q"})
        assert (world.asked, world.reaching.relays) == ([], both)
    await trio.sleep(REVIEW_S - 1.0)
    await world.update({R3: "r", R2: "q", R1: "p"})
    assert world.asked == []
    await trio.sleep(1.0)
    await world.update({R3: "r", R2: "q", R1: "p"})
    assert (world.asked, world.reaching.relays) == ([R3], (R2, R1))
    await world.answer(False, R3)
    assert world.reaching.relays == both, "R1 is better than none"
    await world.update({R4: "r", R2: "q"})
    assert world.asked == [R4], "R1 relays no more"
    await world.answer(True, R4)
    kept = (*sorted((R2, R4)), R1)
    assert world.reaching.relays == kept, "it lapses"
    await trio.sleep(REVIEW_S - 0.1)
    await world.update({R4: "r", R2: "q"})
    assert world.reaching.relays == kept
    await trio.sleep(0.2)
    await world.update({R4: "r", R2: "q"})
    assert set(world.reaching.relays) == {R2, R4}


async def test_a_relay_that_refuses_is_avoided_for_a_while(
    world: Relays, autojump_clock: MockClock
) -> None:
    relays = {R1: "p", R2: "q", R3: "r"}
    await world.update(relays)
    await world.answer(False, R1)
    assert set(world.asked) == {R2, R3}
    await world.answer(True, R2)
    await trio.sleep(1.0)
    await world.answer(False, R3)
    assert world.asked == [], "nobody is left to ask"
    await trio.sleep(ASIDE_S - 1.1)
    await world.update(relays)
    assert world.asked == []
    await trio.sleep(0.2)
    await world.update(relays)
    assert world.asked == [R1]


async def test_in_another_network_relays_that_were_of_no_use_are_asked_again(
    world: Relays, autojump_clock: MockClock
) -> None:
    await world.update({R1: "p", R2: "q"})
    await world.answer(False, R1)
    assert world.asked == [R2]
    world.reaching.renew()
    await wait_all_tasks_blocked()
    assert world.asked == [R2, R1]
    await world.answer(True, R1)
    await world.answer(False, R2)
    assert world.asked == [R2], "it was asked from the old network"
    await world.answer(False, R2)
    assert world.asked == []
