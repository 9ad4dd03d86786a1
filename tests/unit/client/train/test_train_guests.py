"""Links have places of their own for those that work has proven, and for no others."""

from pathlib import Path

import pytest
import trio

from client.train.engine import Engine
from protocol.ids import PeerId
from protocol.membership.losses import PROGRESS
from protocol.wire.messages import Heartbeat, LeaseRequest, Message, Records
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm


def trusted(volunteer: Volunteer) -> frozenset[PeerId] | None:
    network = volunteer.engine.network
    return None if network.trusted is None else frozenset(network.trusted)


async def two_and_one_idle(swarm: TestSwarm) -> list[Volunteer]:
    return [await swarm.add(0, founder=True), await swarm.add(1), await swarm.add()]


async def test_whom_work_has_proven_is_no_guest_and_everybody_else_is(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=5000) as swarm:
        first, last, idle = await two_and_one_idle(swarm)
        await swarm.until(lambda: first.serves(0) and last.serves(1))
        assert trusted(first) is trusted(last) is None, "nobody has proved anything yet"
        await swarm.until(lambda: trusted(first) == {last.peer})
        await swarm.until(lambda: trusted(last) == {first.peer})
        assert trusted(idle) is None, "it has worked with nobody"
        newcomer = await swarm.add(1)
        await swarm.until(lambda: trusted(first) == {last.peer, newcomer.peer})
        await swarm.until(lambda: trusted(newcomer) == {first.peer, last.peer})
        swarm.vanish(last)
        await swarm.until(lambda: trusted(first) == {newcomer.peer})
        swarm.vanish(newcomer)
        await swarm.until(lambda: trusted(first) is None)


async def test_a_crowd_that_talks_brings_no_tick_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick looks at every machine, and a newcomer's word changes nothing that cannot wait."""
    async with open_swarm(tmp_path, steps=5000) as swarm:
        first, last, idle = await two_and_one_idle(swarm)
        await swarm.until(lambda: trusted(first) == {last.peer})
        waited, refresh = list[bool](), Engine._refresh

        def refresh_and_note(engine: Engine, *, soon: bool = True) -> None:
            if engine is first.engine and not soon:
                waited.append(True)
            refresh(engine, soon=soon)

        monkeypatch.setattr(Engine, "_refresh", refresh_and_note)
        for _ in range(20):
            idle.engine.send(first.peer, LeaseRequest(0, 1, 0))
        with trio.fail_after(1.0):  # heartbeats alone would take many seconds
            await swarm.until(lambda: len(waited) >= 20)


async def test_who_has_done_no_work_hears_of_steps_along_with_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message for every step to each of a crowd would be most of what the crowd costs."""
    async with open_swarm(tmp_path, steps=5000) as swarm:
        first, last, idle = await two_and_one_idle(swarm)
        await swarm.until(lambda: trusted(first) == {last.peer})
        await swarm.until(lambda: trusted(last) == {first.peer})
        sent, post = list[tuple[PeerId, Message]](), last.engine.network.post

        def note(to: PeerId, message: Message, payload: bytes = b"") -> bool:
            sent.append((to, message))
            return post(to, message, payload)

        monkeypatch.setattr(last.engine.network, "post", note)
        begun = last.step(1)
        await swarm.until(lambda: last.step(1) >= begun + 60)
        beats = sum(isinstance(message, Heartbeat) for to, message in sent if to == idle.peer)
        assert 0 < progress_to(sent, idle) <= beats + 1
        assert progress_to(sent, first) >= last.step(1) - begun - 2


def progress_to(sent: list[tuple[PeerId, Message]], to: Volunteer) -> int:
    return sum(
        isinstance(message, Records) and all(r.kind == PROGRESS for r in message.records)
        for peer_id, message in sent
        if peer_id == to.peer
    )
