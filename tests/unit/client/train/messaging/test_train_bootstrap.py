"""Finding the swarm: a former member may come back first, a stranger needs a member."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from client.errors import ExitCode, UserError
from client.net.errors import DialError, TurnedAway
from client.net.network import Network
from client.store.swarms import SwarmStore
from client.train.messaging.bootstrap import TURNED_AWAY_S, dial_first, fetch_manifest, find_swarm
from client.train.messaging.handshake import PROTOCOL
from protocol.address import Address
from protocol.ids import PeerId, peer_id_from_key
from protocol.invite import MAX_PEERS, Invite, SwarmFile, Target
from protocol.wire.messages import Goodbye, Hello
from tests.support.memory_network import open_memory_hub
from tests.support.train_swarm import open_swarm

GONE = Address("ip4", "192.0.2.1", 9, peer_id_from_key(bytes(range(32))))
ME = peer_id_from_key(b"m" * 32)


async def file_of(folder: Path) -> SwarmFile:
    async with open_swarm(folder, steps=1) as swarm:
        known = swarm.file
        return SwarmFile(known.manifest, known.encoded, known.signature, (GONE,))


async def find(target: Target, store: SwarmStore) -> SwarmFile | UserError:
    async with open_memory_hub() as hub:
        network = hub.join(ME)
        try:
            return await find_swarm(network, target, store, ME, "test", [], 5.0)
        except UserError as error:
            return error


async def test_a_stranger_is_told_that_nobody_answers(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    target = await file_of(tmp_path)
    found = await find(target, SwarmStore(tmp_path / "swarms"))
    assert isinstance(found, UserError)
    assert found.exit_code == ExitCode.UNREACHABLE


async def test_a_member_comes_back_though_nobody_answers(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    target, store = await file_of(tmp_path), SwarmStore(tmp_path / "swarms")
    store.remember(target)
    found = await find(target, store)
    assert isinstance(found, SwarmFile)
    assert found.swarm == target.swarm


async def test_a_newer_invite_adds_its_members_though_none_answered_yet(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The node goes on dialling those it was told of; the newest word comes first."""
    old, store = await file_of(tmp_path), SwarmStore(tmp_path / "swarms")
    store.remember(old)
    named = tuple(replace(GONE, port=port) for port in range(10, 10 + MAX_PEERS))
    for count in (1, MAX_PEERS):
        found = await find(Invite(old.swarm, named[:count], None), store)
        assert isinstance(found, SwarmFile)
        assert found.peers == (*named[:count], GONE)[:MAX_PEERS]


class ConnectionLimiter(Network):
    """A member that lets nobody in before a time of day."""

    def __init__(self, error: DialError, opens_at: float) -> None:
        self._error, self._opens_at = error, opens_at

    async def connect(self, *addresses: str) -> PeerId:
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self._opens_at:
            raise self._error
        return GONE.peer


async def test_who_is_turned_away_tries_longer_than_who_finds_nobody(
    autojump_clock: MockClock,
) -> None:
    """A crowd at a member's door leaves a place now and then."""
    began = trio.current_time()
    late = began + TURNED_AWAY_S - 5
    assert await dial_first(ConnectionLimiter(TurnedAway("full"), late), [GONE], 20.0) == GONE.peer
    began = trio.current_time()
    with pytest.raises(UserError, match="within 20 s"):
        await dial_first(ConnectionLimiter(DialError("nobody"), began + 60), [GONE], 20.0)
    assert trio.current_time() - began == pytest.approx(20.0)
    with pytest.raises(UserError, match="full"):
        await dial_first(ConnectionLimiter(TurnedAway("full"), 1e9), [GONE], 20.0)


@pytest.mark.parametrize(
    ("theirs", "next_step"), [(PROTOCOL + 1, "upgrade it"), (PROTOCOL - 1, "its program is older")]
)
async def test_a_member_of_another_protocol_is_named_with_whose_program_is_older(
    theirs: int, next_step: str, autojump_clock: MockClock
) -> None:
    """Its refusal comes later, and says only what it speaks itself."""
    async with open_memory_hub() as hub:
        network, member = hub.join(ME), hub.join(peer_id_from_key(b"n" * 32))
        peer = await network.connect(f"/memory/{peer_id_from_key(b'n' * 32)}")
        member.send_nowait(ME, Hello(theirs, None, "volunteer/9"))
        member.send_nowait(ME, Goodbye(f"this swarm speaks protocol {theirs}"))
        with pytest.raises(UserError, match=f"speaks protocol {theirs}, and") as raised:
            await fetch_manifest(network, peer, None, Hello(PROTOCOL, None, "volunteer"), [])
    assert raised.value.exit_code == ExitCode.REFUSED
    assert next_step in raised.value.next_step
