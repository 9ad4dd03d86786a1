"""Links have places of their own for those that work has proven, and for no others."""

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock

from protocol.ids import PeerId
from tests.support.memory_network import MemoryNetwork
from tests.support.train_swarm import Volunteer, open_swarm


def peer(volunteer: Volunteer) -> PeerId:
    return volunteer.engine.signer.peer


def trusted(volunteer: Volunteer) -> frozenset[PeerId] | None:
    network = volunteer.engine.network
    assert isinstance(network, MemoryNetwork)
    return None if network.trusted is None else frozenset(network.trusted)


async def test_whom_work_has_proven_is_no_guest_and_everybody_else_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_swarm(tmp_path, steps=5000) as swarm:
        first = await swarm.add(0, founder=True)
        last = await swarm.add(1)
        idle = await swarm.add()
        await swarm.until(lambda: first.serves(0) and last.serves(1))
        assert trusted(first) is trusted(last) is None, "nobody has proved anything yet"
        swarm.start()
        await swarm.until(lambda: trusted(first) == {peer(last)})
        await swarm.until(lambda: trusted(last) == {peer(first)})
        assert trusted(idle) is None, "it has worked with nobody"
        newcomer = await swarm.add(1)
        await swarm.until(lambda: trusted(first) == {peer(last), peer(newcomer)})
        await swarm.until(lambda: trusted(newcomer) == {peer(first), peer(last)})
        swarm.vanish(last)
        await swarm.until(lambda: trusted(first) == {peer(newcomer)})


async def test_who_is_linked_with_none_of_them_depends_on_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_swarm(tmp_path, steps=5000) as swarm:
        first = await swarm.add(0, founder=True)
        last = await swarm.add(1)
        await swarm.add()
        swarm.start()
        await swarm.until(lambda: trusted(first) == {peer(last)})
        swarm.vanish(last)
        await swarm.until(lambda: trusted(first) is None)
