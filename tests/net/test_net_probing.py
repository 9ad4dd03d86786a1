"""Peers that ask to be dialled back, on real sockets: who is, how often, and what they hear."""

from unittest.mock import AsyncMock

import pytest
import trio

from client.net import libp2p_network
from client.net.libp2p_network import Libp2pNetwork
from client.net.relay import exchange
from client.net.yamux import YamuxStream
from protocol.ids import PeerId
from protocol.reachability.budgets import DIALS_OF_PREFIX, MESSAGES
from protocol.reachability.machine import Ends
from protocol.relay.messages import RelayMessage, Status
from tests.support.arrivals import until
from tests.support.circuits import circuit
from tests.support.loopback import Networks

FAR, AT_HOME, STRANGER = PeerId("far"), PeerId("at home"), PeerId("stranger")
HOSTS = {FAR: "11.0.2.2", STRANGER: "11.0.3.2", AT_HOME: "192.168.1.9"}


def prober(network: Libp2pNetwork, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Let it see peers of other networks; return whom it dials back, always with success."""
    dialled: list[tuple[str, int]] = []

    async def probe(target: object) -> bool:
        dialled.append((target.host, target.port))  # type: ignore[attr-defined]
        await trio.lowlevel.checkpoint()
        return True

    def ends(peer: PeerId) -> Ends | None:
        return Ends(HOSTS[peer], 40_000, dialled=False, port=4001) if peer in HOSTS else None

    monkeypatch.setattr(network, "ends", ends)
    monkeypatch.setattr(network, "is_member", lambda peer: peer != STRANGER)
    monkeypatch.setattr(libp2p_network, "ADVERT_S", 0.1)
    monkeypatch.setattr(network._host, "probe", probe)
    return dialled


async def test_members_are_dialled_back_within_a_budget_and_others_are_not(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with networks() as a:
        dialled = prober(a, monkeypatch)
        for peer in (STRANGER, AT_HOME, PeerId("behind a relay")):
            assert (await a._dial_back(peer, 22)).code in ("not-a-member", "too-often")
        answers = [await a._dial_back(FAR, 4000 + number) for number in range(50)]
        burst = int(DIALS_OF_PREFIX.burst)
        assert dialled == [(HOSTS[FAR], 4000 + number) for number in range(burst)]
        assert [answer.code for answer in answers] == ["ok"] * burst + ["too-often"] * (50 - burst)


async def test_who_becomes_a_member_in_this_moment_is_dialled(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its advert has been sent before, and travels on another stream."""
    async with networks() as a, trio.open_nursery() as nursery:
        dialled = prober(a, monkeypatch)
        monkeypatch.setattr(libp2p_network, "ADVERT_S", 10.0)
        nursery.start_soon(a._dial_back, STRANGER, 4001)
        await trio.sleep(0.1)
        assert not dialled
        monkeypatch.setattr(a, "is_member", lambda peer: True)
    assert dialled == [(HOSTS[STRANGER], 4001)]


async def test_who_floods_with_requests_is_blamed_and_costs_no_more(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with networks() as a:
        dialled = prober(a, monkeypatch)
        for _ in range(1000):
            await a._dial_back(FAR, 4001)
        assert a.statistics().refused["reach-flood"] >= 1000 - MESSAGES.burst - 10
        assert len(dialled) == DIALS_OF_PREFIX.burst


@pytest.mark.parametrize(
    ("code", "heard"),
    [("ok", True), ("unreachable", False), ("too-often", None), ("not-a-member", None)],
)
async def test_what_a_prober_answers_is_heard(
    networks: Networks, monkeypatch: pytest.MonkeyPatch, code: str, heard: bool | None
) -> None:
    asked: list[tuple[PeerId, int]] = []

    async def dial_back(peer: PeerId, port: int) -> Status:
        await trio.lowlevel.checkpoint()
        asked.append((peer, port))
        return Status(code)  # type: ignore[arg-type]

    async with networks() as a, networks() as b:
        monkeypatch.setattr(a, "_dial_back", dial_back)
        await b.connect(a.addresses[0])
        assert await b.probe(a.peer_id, 4001) is heard
        assert asked == [(b.peer_id, 4001)]


async def test_a_prober_that_does_not_answer_is_not_waited_for(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "ANSWER_S", 0.2)
    async with networks() as a, networks() as b:
        monkeypatch.setattr(a, "_dial_back", lambda *_: trio.sleep_forever())
        await b.connect(a.addresses[0])
        assert await b.probe(a.peer_id, 4001) is None
        await until(lambda: a.peer_id in b.statistics().peers)


async def test_a_prober_that_never_ends_its_answer_leaves_nothing_behind(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer_for_ever(stream: YamuxStream, message: RelayMessage) -> None:
        await exchange.send_message(stream, message)
        await trio.sleep_forever()

    monkeypatch.setattr(libp2p_network, "send_last", answer_for_ever)
    async with networks() as a, networks() as b:
        monkeypatch.setattr(a, "_dial_back", AsyncMock(return_value=Status("ok")))
        await b.connect(a.addresses[0])
        connection = b.direct(a.peer_id)
        assert connection is not None
        session = connection.session

        def opened_here() -> list[int]:
            return [number for number in session._streams if number % 2 == session._next_id % 2]

        lanes = opened_here()
        assert await b.probe(a.peer_id, 4001)
        assert opened_here() == lanes


async def test_nobody_is_asked_through_a_relay(networks: Networks) -> None:
    async with circuit(networks) as (a, b, _):
        assert await a.probe(b.peer_id, 4001) is None
