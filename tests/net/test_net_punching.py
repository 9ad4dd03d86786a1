"""Two relayed peers that try to meet: who says what when, and what no peer can make us do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import trio
from trio.testing import MockClock

from client.net.punching import TRIES, Attempt, AttemptFailed
from client.net.relay.exchange import FAILURES, ask
from protocol.errors import RemoteProtocolError
from protocol.hosts import Outer
from protocol.pace import HEARD_S, LOST_S
from protocol.relay.messages import (
    Connect,
    Punch,
    PunchFailed,
    PunchNow,
    PunchRefused,
    RelayMessage,
    Reserve,
)
from tests.support.arrivals import until
from tests.support.circuits import asked, circuit, linked, reserve
from tests.support.loopback import Networks

A, B = Outer(40_001, "11.0.1.2", 50_001), Outer(40_002, "11.0.2.2", 50_002)
AT_A, AT_B = Punch(A.host, A.port), Punch(B.host, B.port)


class Meeting(NamedTuple):
    """A dial, and when it began."""

    at: float
    own_port: int
    host: str
    port: int
    first: bool


@dataclass
class End:
    """One end of a circuit that takes a while; nobody meets before the dial of number ``meets``."""

    one_way_s: Callable[[], float] = lambda: 0.04
    meets: float = math.inf
    said: list[RelayMessage] = field(default_factory=list)
    dialled: list[Meeting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inbox, self._from_other = trio.open_memory_channel[tuple[float, RelayMessage]](9)
        self.other: End | None = None

    async def say(self, message: RelayMessage) -> None:
        await trio.lowlevel.checkpoint()
        self.said.append(message)
        if self.other is not None:
            arrives = trio.current_time() + self.one_way_s()
            self.other.inbox.send_nowait((arrives, message))

    async def hear(self) -> RelayMessage:
        arrives, message = await self._from_other.receive()
        await trio.sleep_until(arrives)
        return message

    async def meet(self, own_port: int, host: str, port: int, first: bool) -> bool:
        self.dialled.append(Meeting(trio.current_time(), own_port, host, port, first))
        await trio.sleep(1.0)
        return len(self.dialled) >= self.meets

    def tell(self, *messages: RelayMessage) -> End:
        """Let messages wait that the other side has said."""
        for message in messages:
            self.inbox.send_nowait((0.0, message))
        return self


def attempt(end: End, seen_at: str, own: Outer | None) -> Attempt:
    return Attempt(end.say, end.hear, end.meet, seen_at, own)


async def talk(a: End, b: End, own_a: Outer | None, own_b: Outer | None) -> list[str]:
    """Let both sides play their parts; return how they ended, the one that begins first."""
    a.other, b.other = b, a
    ended = ["met", "met"]

    async def begin() -> None:
        try:
            await attempt(a, B.host, own_a).begin()
        except AttemptFailed as failure:
            ended[0] = str(failure)

    async def answer() -> None:
        place = await b.hear()
        assert isinstance(place, Punch)
        try:
            await attempt(b, A.host, own_b).answer(place)
        except AttemptFailed as failure:
            ended[1] = str(failure)

    with trio.move_on_after(1000.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            nursery.start_soon(answer)
    return ended


@pytest.mark.parametrize("one_way_s", [0.001, 0.04, 0.2, 1.0])
async def test_both_dial_at_the_same_moment_and_one_begins_noise(
    one_way_s: float, autojump_clock: MockClock
) -> None:
    a, b = End(lambda: one_way_s, meets=1), End(lambda: one_way_s, meets=1)
    assert await talk(a, b, A, B) == ["met", "met"]
    assert (a.said, b.said) == ([AT_A, PunchNow()], [AT_B])
    (dial,), (other,) = a.dialled, b.dialled
    assert dial == Meeting(dial.at, A.own_port, B.host, B.port, first=False)
    assert other == Meeting(other.at, B.own_port, A.host, A.port, first=True)
    assert dial.at == pytest.approx(3 * one_way_s) == other.at


async def test_each_try_measures_anew_and_the_third_is_the_last(autojump_clock: MockClock) -> None:
    a, b = End(), End()
    a.one_way_s = b.one_way_s = lambda: (len(a.dialled) + 1) / 10
    assert await talk(a, b, A, B) == [f"{TRIES} tries failed", "no answer"]
    assert (len(a.dialled), len(b.dialled)) == (TRIES, TRIES)
    for dial, other in zip(a.dialled, b.dialled, strict=True):
        assert dial.at == pytest.approx(other.at)
    assert b.said == [AT_B, PunchFailed()] * TRIES


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
    seen_at: str, place: Punch, autojump_clock: MockClock
) -> None:
    a, b = End().tell(place), End()
    with pytest.raises(AttemptFailed):
        await attempt(a, seen_at, A).begin()
    with pytest.raises(AttemptFailed):
        await attempt(b, seen_at, A).answer(place)
    assert b.said == [PunchRefused("elsewhere")]
    assert a.dialled == b.dialled == []


@pytest.mark.parametrize("own", [None, Outer(40_001, A.host, 80)])
async def test_who_does_not_know_its_own_place_says_so(
    own: Outer | None, autojump_clock: MockClock
) -> None:
    a, b = End(), End()
    with pytest.raises(AttemptFailed):
        await attempt(a, B.host, own).begin()
    assert a.said == []
    with pytest.raises(AttemptFailed):
        await attempt(b, A.host, own).answer(AT_A)
    assert b.said == [PunchRefused("unmapped")]
    with pytest.raises(AttemptFailed, match="the other side refuses: unmapped"):
        await attempt(End().tell(PunchRefused("unmapped")), B.host, A).begin()


async def test_silence_and_slow_circuits_end_it(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    with pytest.raises(AttemptFailed, match="no answer"):
        await attempt(End(), B.host, A).begin()
    assert trio.current_time() == pytest.approx(began + LOST_S)
    with pytest.raises(AttemptFailed, match="no answer"):
        await attempt(End(), A.host, B).answer(AT_A)
    a, b = End(lambda: HEARD_S / 2 + 0.1), End(lambda: HEARD_S / 2 + 0.1)
    assert await talk(a, b, A, B) == ["the circuit is too slow", "no answer"]
    assert a.dialled == []


async def test_a_storm_of_tries_is_a_broken_rule(autojump_clock: MockClock) -> None:
    b = End().tell(*[PunchNow(), AT_A] * TRIES)
    with pytest.raises(RemoteProtocolError, match="punch-storm") as refused:
        await attempt(b, A.host, B).answer(AT_A)
    assert refused.value.penalty > 0
    assert len(b.dialled) == TRIES


@pytest.mark.parametrize("message", [PunchFailed(), AT_A, Reserve()])
async def test_to_say_what_has_no_place_is_a_broken_rule(
    message: RelayMessage, autojump_clock: MockClock
) -> None:
    with pytest.raises(RemoteProtocolError, match="punch-unasked"):
        await attempt(End().tell(message), A.host, B).answer(AT_A)


@pytest.mark.parametrize("seed", range(300))
async def test_whatever_a_peer_says_we_dial_its_own_host_three_times_at_most(
    seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    words: list[RelayMessage] = [
        AT_A, AT_A, Punch("11.0.9.9", 50_000), PunchNow(), PunchFailed(), PunchRefused("busy"),
        Reserve(), Connect("somebody"),
    ]  # fmt: skip
    end = End().tell(*(rng.choice(words) for _ in range(rng.randrange(9))))
    begins = rng.random() < 0.5
    machine = attempt(end, A.host, B)
    with suppress(AttemptFailed, RemoteProtocolError):
        await (machine.begin() if begins else machine.answer(AT_A))
    assert len(end.dialled) <= TRIES
    expected = (B.own_port, A.host, A.port, not begins)
    assert {(one.own_port, one.host, one.port, one.first) for one in end.dialled} <= {expected}


# --- on real sockets ------------------------------------------------------------------------------

OWN = Outer(40_000, "11.0.1.2", 40_000)
VICTIM = Punch("11.0.9.9", 40_000)


async def test_a_third_partys_place_is_not_dialled(networks: Networks) -> None:
    async with circuit(networks) as (a, b, _):
        assert await asked(a, b, VICTIM) == PunchRefused("unmapped")
        b.seen_at([], [OWN])
        assert await asked(a, b, VICTIM) == PunchRefused("elsewhere")
        assert b.punching.refused["missed"] == 0
        assert a.statistics().punched == b.statistics().punched == ()


async def test_an_attempt_begins_as_soon_as_a_port_of_ours_is_known(networks: Networks) -> None:
    async with circuit(networks) as (a, _, _):
        a.seen_at([], [OWN])
        await until(lambda: a.punching.refused)
        assert set(a.punching.refused) == {"the other side refuses: unmapped"}


async def test_one_who_is_being_dialled_is_not_punched(networks: Networks) -> None:
    async with circuit(networks) as (a, b, _):
        b.seen_at([], [OWN])
        async with b.dialling(a.peer_id):
            assert await asked(a, b, VICTIM) == PunchRefused("busy")
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
        assert b.statistics().punched == ()


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
