"""Two relayed peers that try to meet: who says what when, and what no peer can make us do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from client.net import punching
from client.net.addresses import Destination
from client.net.errors import DialError
from client.net.host import Connection
from client.net.punching import TRIES, Punching
from client.net.relay.exchange import FAILURES, ask
from protocol.errors import RemoteProtocolError
from protocol.hosts import Outer
from protocol.ids import PeerId
from protocol.pace import HEARD_S, LOST_S
from protocol.reachability.budgets import TRIES_OF_PEER
from protocol.relay.messages import (
    Connect,
    Punch,
    PunchNow,
    RelayMessage,
    Reserve,
    Status,
)
from tests.support.arrivals import until
from tests.support.circuits import asked, circuit, linked, reserve
from tests.support.loopback import Networks

A, B = Outer(40_001, "11.0.1.2", 50_001), Outer(40_002, "11.0.2.2", 50_002)
AT_A, AT_B = Punch(A.host, A.port), Punch(B.host, B.port)
OtherSide = Callable[["Stream", RelayMessage], Any]


Meeting = tuple[float, int, str, int, bool]
"""A dial: when, from which of our ports, where to, and whether we begin Noise."""


class Stream:
    """One end of a stream of a circuit, which takes a while; it carries messages."""

    def __init__(self, one_way_s: Callable[[], float] = lambda: 0.0, other: Any = None) -> None:
        self._one_way_s, self._other = one_way_s, other or Stream(one_way_s, self)
        self._put, self._get = trio.open_memory_channel[tuple[float, RelayMessage]](math.inf)

    async def say(self, message: RelayMessage) -> None:
        self._other._put.send_nowait((trio.current_time() + self._one_way_s(), message))

    async def hear(self) -> RelayMessage:
        arrives, message = await self._get.receive()
        await trio.sleep_until(arrives)
        return message

    def reset(self) -> None:
        """Nobody waits for it."""


@pytest.fixture(autouse=True)
def _no_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "networks" not in request.fixturenames:
        monkeypatch.setattr(punching, "send_message", Stream.say)
        monkeypatch.setattr(punching, "send_last", Stream.say)
        monkeypatch.setattr(punching, "receive_message", Stream.hear)


class End:
    """One home; stands for its network. Nobody meets before the dial of number ``meets``."""

    def __init__(self, own: Outer | None, meets: float = math.inf, one_way_s: float = 0.04) -> None:
        self.own, self.meets, self.delay_s = own, meets, lambda: one_way_s
        self.dialled: list[Meeting] = []
        self.blamed: list[str] = []
        self.lock = trio.Lock()
        self.punching = Punching(self)  # type: ignore[arg-type]
        self.punching.own = (own,) if own else ()

    @property
    def failed(self) -> list[str]:
        return [*self.punching.refused.elements()]

    def dialling(self, peer: PeerId) -> trio.Lock:
        return self.lock

    def is_admitted(self, peer: PeerId) -> bool:
        return True

    def direct(self, peer: PeerId) -> None:
        return None

    def penalise(self, peer: PeerId, points: int, reason: str) -> None:
        self.blamed.append(reason)

    async def meet(self, target: Destination, own_port: int, *, first: bool) -> None:
        at = trio.current_time()
        self.dialled.append((at, own_port, target.host, target.port, first))
        await trio.sleep(1.0)
        if len(self.dialled) < self.meets:
            raise DialError("nobody came")

    async def begin(
        self, other: OtherSide, seen_at: str, monkeypatch: pytest.MonkeyPatch
    ) -> list[str]:
        """Begin tries with whoever takes part at the other side; return what failed."""
        async with trio.open_nursery() as nursery:

            async def answered(*asked: Any) -> tuple[Stream, RelayMessage] | None:
                near = Stream(self.delay_s)
                await near.say(asked[-1])
                nursery.start_soon(other, near._other, await near._other.hear())
                with trio.move_on_after(LOST_S):
                    return near, await near.hear()
                return None

            monkeypatch.setattr(punching, "answered", answered)
            await self.punching._begin(circuit_of(seen_at, dialled=True))
            nursery.cancel_scope.cancel()
        return self.failed

    async def serve(self, stream: Any, place: RelayMessage, seen_at: str = A.host) -> None:
        """Take part at the other side, as a network does."""
        assert isinstance(place, Punch)
        try:
            await self.punching.serve(circuit_of(seen_at, dialled=False), stream, place)
        except RemoteProtocolError as error:
            self.blamed.append(error.reason)
        except trio.TooSlowError:
            self.blamed.append("no answer")


def circuit_of(seen_at: str, *, dialled: bool) -> Connection:
    peer, relay = PeerId("peer"), PeerId("relay")
    made: Any = SimpleNamespace(peer=peer, relay=relay, dialled=dialled, host_by_relay=seen_at)
    return made


async def served(end: End, place: Punch, *words: RelayMessage, seen_at: str = A.host) -> Any:
    """Let a side take part in a try of somebody who says no more than this; return its answer."""
    stream = Stream()
    for word in words:
        await stream._other.say(word)
    await end.serve(stream, place, seen_at)
    return await stream._other.hear()


@pytest.mark.parametrize("one_way_s", [0.001, 0.04, 0.2, 1.0])
async def test_both_dial_at_the_same_moment_and_one_begins_noise(
    one_way_s: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = End(A, meets=1, one_way_s=one_way_s), End(B, meets=1)
    assert await a.begin(b.serve, B.host, monkeypatch) == b.failed == []
    ((at, *dial),), ((other_at, *other),) = a.dialled, b.dialled
    assert dial == [A.own_port, B.host, B.port, False]
    assert other == [B.own_port, A.host, A.port, True]
    assert at == pytest.approx(3 * one_way_s) == other_at


async def test_each_try_measures_anew_and_the_third_is_the_last(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = End(A), End(B)
    a.delay_s = lambda: (len(b.dialled) + 1) / 10
    failed = await a.begin(b.serve, B.host, monkeypatch)
    assert failed == ["missed"] * TRIES + [f"{TRIES} tries failed"]
    assert b.failed == ["missed"] * TRIES
    for dial, other in zip(a.dialled, b.dialled, strict=True):
        assert dial[0] == pytest.approx(other[0])


@pytest.mark.parametrize(
    ("seen_at", "place"),
    [
        (B.host, Punch("11.0.9.9", 50_002)),  # a third party's
        ("", AT_B),  # the relay does not say where the peer is
        ("192.168.1.1", Punch("192.168.1.1", 50_002)),
        ("127.0.0.1", Punch("127.0.0.1", 50_002)),
        ("224.0.0.1", Punch("224.0.0.1", 50_002)),
        ("name.example", Punch("name.example", 50_002)),
        (A.host, Punch(A.host, 50_002)),  # in our own home
    ],
)
async def test_a_place_that_is_not_the_peers_own_is_dialled_by_nobody(
    seen_at: str, place: Punch, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = End(A), End(A)
    answer = lambda stream, _: stream.say(place)  # noqa: E731
    (failed,) = await a.begin(answer, seen_at, monkeypatch)
    assert failed.startswith("the place is not where")
    assert await served(b, place, PunchNow(), seen_at=seen_at) == Status("elsewhere")
    assert a.dialled == b.dialled == []


@pytest.mark.parametrize("own", [None, Outer(40_001, A.host, 80)])
async def test_who_does_not_know_its_own_place_says_so(
    own: Outer | None, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = End(A), End(own)
    assert await b.begin(a.serve, A.host, monkeypatch) == ["our own port is not known yet"]
    assert await served(b, AT_A) == Status("unmapped")
    failed = await a.begin(b.serve, B.host, monkeypatch)
    assert failed == ["the other side refuses: unmapped"]


async def test_silence_and_slow_circuits_end_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, began = End(A), trio.current_time()
    assert await a.begin(lambda *_: trio.sleep(0), B.host, monkeypatch) == ["no answer"]
    assert trio.current_time() == pytest.approx(began + LOST_S, abs=0.1)
    b = End(B)
    await served(b, AT_A)
    assert b.blamed == ["no answer"]
    a = End(A, one_way_s=HEARD_S / 2 + 0.1)
    assert await a.begin(b.serve, B.host, monkeypatch) == ["the circuit is too slow"]
    assert a.dialled == b.dialled == []


async def test_who_tries_too_often_is_dialled_no_more(autojump_clock: MockClock) -> None:
    b = End(B)
    for _ in range(2 * int(TRIES_OF_PEER.burst)):
        with suppress(*FAILURES):
            await served(b, AT_A, PunchNow())
    assert len(b.dialled) == TRIES_OF_PEER.burst
    assert b.punching.refused["too-often"] == TRIES_OF_PEER.burst


@pytest.mark.parametrize("message", [Status("busy"), AT_A, Reserve()])
async def test_to_say_what_has_no_place_is_a_broken_rule(
    message: RelayMessage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = End(A), End(B)
    await served(b, AT_A, message)
    assert b.blamed == ["punch-unasked"]
    await a.begin(lambda stream, _: stream.say(Reserve()), B.host, monkeypatch)
    assert a.blamed == ["punch-unasked"]


@pytest.mark.parametrize("seed", range(100))
async def test_whatever_a_peer_says_we_dial_its_own_host_three_times_at_most(
    seed: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    words: list[RelayMessage] = [
        AT_A, AT_A, Punch("11.0.9.9", 50_000), PunchNow(), Status("busy"), Reserve(),
        Connect("somebody"),
    ]  # fmt: skip
    end, begins = End(B), rng.random() < 0.5
    if begins:
        answer = lambda stream, _: stream.say(rng.choice(words))  # noqa: E731
        await end.begin(answer, A.host, monkeypatch)
    else:
        place = rng.choice([word for word in words if isinstance(word, Punch)])
        await served(end, place, *(rng.choice(words) for _ in range(rng.randrange(4))))
    assert len(end.dialled) <= (TRIES if begins else 1)
    expected = (B.own_port, A.host, A.port, not begins)
    assert {dial[1:] for dial in end.dialled} <= {expected}


# --- on real sockets ------------------------------------------------------------------------------

OWN = Outer(40_000, "11.0.1.2", 40_000)
VICTIM = Punch("11.0.9.9", 40_000)


async def test_a_third_partys_place_is_not_dialled(networks: Networks) -> None:
    async with circuit(networks) as (a, b, _):
        assert await asked(a, b, VICTIM) == Status("unmapped")
        b.seen_at([], [OWN])
        assert await asked(a, b, VICTIM) == Status("elsewhere")
        assert b.punching.refused["missed"] == 0
        assert not a.working()[b.peer_id].punched


async def test_an_attempt_begins_as_soon_as_a_port_of_ours_is_known(networks: Networks) -> None:
    async with circuit(networks) as (a, _, _):
        a.seen_at([], [OWN])
        await until(lambda: a.punching.refused)
        assert set(a.punching.refused) == {"the other side refuses: unmapped"}


async def test_one_who_is_being_dialled_is_not_punched(networks: Networks) -> None:
    async with circuit(networks) as (a, b, _):
        b.seen_at([], [OWN])
        async with b.dialling(a.peer_id):
            assert await asked(a, b, VICTIM) == Status("busy")
        assert b.punching.refused["busy"] == 1


async def test_to_punch_who_is_linked_directly_is_a_broken_rule(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        await a.connect(b.addresses[0])
        await until(lambda: b.direct(a.peer_id))
        connection = a.direct(b.peer_id)
        assert connection is not None
        with suppress(*FAILURES):
            await ask(connection, VICTIM)
        await until(lambda: b.statistics().refused.get("punch-unasked"))
        assert not any(one.punched for one in b.working().values())


async def test_who_was_no_member_when_it_dialled_asks_again_where_the_other_end_is(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with networks() as a, networks() as b, networks() as relay:
        await reserve(b, relay)
        monkeypatch.setattr(relay, "is_member", lambda peer: peer == b.peer_id)
        await a.connect(b.reaching.addresses[0])
        await until(lambda: linked(b, a))
        connection = a._links[b.peer_id].connection
        assert connection is not None
        for member, host in ((False, ""), (True, "127.0.0.1")):
            monkeypatch.setattr(relay, "is_member", lambda peer, known=member: known)
            await a.punching._ask_relay(connection)
            assert connection.host_by_relay == host
