"""The in-memory hub: the same interface, with faults that a seed repeats exactly."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from client.net.errors import DialError, LinkFull, PeerUnreachable
from client.net.network import Inbound, NetEvent, Network, PeerDown, PeerUp
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, peer_id_from_key
from protocol.wire.messages import Backward, Goodbye
from tests.support.memory_network import Faults, MemoryHub, MemoryNetwork, open_memory_hub

A, B, C = (peer_id_from_key(bytes([n]) * 32) for n in (1, 2, 3))


def drain(network: MemoryNetwork) -> list[NetEvent]:
    events: list[NetEvent] = []
    while len(network.events):
        events.append(network.events.receive_nowait())
    return events


def reasons(network: MemoryNetwork) -> list[str]:
    found = [event.message for event in drain(network) if isinstance(event, Inbound)]
    return [message.reason for message in found if isinstance(message, Goodbye)]


async def linked(hub: MemoryHub) -> tuple[MemoryNetwork, MemoryNetwork]:
    a, b = hub.join(A), hub.join(B)
    await a.connect(b.addresses[0])
    assert drain(a) == [PeerUp(B)]
    assert drain(b) == [PeerUp(A)]
    return a, b


async def test_without_faults_messages_arrive_in_order(autojump_clock: MockClock) -> None:
    async with open_memory_hub() as hub:
        a, b = await linked(hub)
        for number in range(100):
            await a.send(B, Goodbye(str(number)))
        await trio.sleep(1)
        assert reasons(b) == [str(number) for number in range(100)]
        network: Network = a  # mypy: the interface is met
        assert network.statistics().frames_out == 100
        assert network.statistics().tensor_bytes_out == 0
        await a.send(B, Backward(0, 1, 1, 0), bytes(1000))
        assert 1000 < network.statistics().tensor_bytes_out < 1100
        with pytest.raises(LocalProtocolError):
            a.send_nowait(B, Goodbye(""), b"control messages carry no payload")


async def run_with_faults(seed: int) -> list[str]:
    faults = Faults(loss=0.2, duplicate=0.1, delay_s=(0.0, 0.5), reorder=True)
    async with open_memory_hub(seed, faults) as hub:
        a, b = await linked(hub)
        for number in range(300):
            await a.send(B, Goodbye(str(number)))
            await trio.sleep(0.01)
        await trio.sleep(5)
        return reasons(b)


async def test_faults_follow_the_seed(autojump_clock: MockClock) -> None:
    seen = await run_with_faults(7)
    assert 200 < len(set(seen)) < 280  # 20 % lost
    assert len(seen) > len(set(seen))  # some doubled
    assert seen != sorted(seen, key=int)  # some overtaken
    assert seen != await run_with_faults(8)
    assert seen == await run_with_faults(7)


async def test_delay_without_reordering_keeps_the_order(autojump_clock: MockClock) -> None:
    async with open_memory_hub(1, Faults(delay_s=(0.1, 2.0))) as hub:
        a, b = await linked(hub)
        for number in range(50):
            a.send_nowait(B, Goodbye(str(number)))
        await trio.sleep(0.05)
        assert reasons(b) == []
        await trio.sleep(10)
        assert reasons(b) == [str(number) for number in range(50)]


async def test_partition_kill_and_return(autojump_clock: MockClock) -> None:
    async with open_memory_hub() as hub:
        a, b = await linked(hub)
        a.want({B: b.addresses})
        hub.partition([A], [B])
        assert drain(a) == [PeerDown(B, "partitioned")]
        with pytest.raises(PeerUnreachable):
            await a.send(B, Goodbye(""))
        hub.heal()
        await trio.sleep(1)
        assert drain(a) == [PeerUp(B)]
        hub.kill(B)
        assert drain(a) == [PeerDown(B, "connection lost")]
        with pytest.raises(DialError):
            await a.connect(b.addresses[0])
        again = hub.join(B)
        await trio.sleep(1)
        assert drain(again) == [PeerUp(A)]
        with pytest.raises(LocalProtocolError):
            hub.join(B)


async def test_full_lanes_and_bans(autojump_clock: MockClock) -> None:
    async with open_memory_hub(0, Faults(delay_s=(1e6, 1e6))) as hub:
        a, b = await linked(hub)
        with pytest.raises(LinkFull):
            fill(a, B)
        b.penalise(A, 100, "test")
        with pytest.raises(PeerUnreachable):
            a.send_nowait(B, Goodbye(""))
        with pytest.raises(DialError):
            await a.connect(b.addresses[0])
        await a.disconnect(B, "gone already")
        with pytest.raises(DialError):
            await a.connect(a.addresses[0])


def fill(network: MemoryNetwork, peer: PeerId) -> None:
    while True:
        network.send_nowait(peer, Goodbye("x"))
