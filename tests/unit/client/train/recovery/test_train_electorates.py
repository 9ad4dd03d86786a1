"""Members that come one after the other, work once and give their place up again, outnumber those
that train, and say that the run begins again from the seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.effects import Publish
from protocol.ids import PeerId
from protocol.recovery.electorates import Electorates
from protocol.recovery.stored import ERA_BITS, STORED, Lineage, Stored, encode_stored
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

AGAIN = (1 << ERA_BITS) + 7
GUESTS = 3
SOON_S = 0.5


def era(volunteer: Volunteer) -> int:
    assert volunteer.engine.history is not None
    return volunteer.engine.history.lineage.era


def knows(volunteer: Volunteer, guest: Volunteer) -> bool:
    history = volunteer.engine.history
    return history is not None and history.proves(guest.engine.signer.peer)


async def work_once(swarm: TestSwarm, members: list[Volunteer]) -> Volunteer:
    """Serve a stage until all members have counted our work; then give it up."""
    guest = await swarm.add(0)
    guest.held_stages.allow_training()
    await swarm.until(lambda: all(knows(one, guest) for one in members))
    guest.unassign(0)
    await swarm.until(lambda: not guest.held_stages.held)
    return guest


def says_again(guest: Volunteer, elector: PeerId) -> None:
    """Say that the run begins again from the seed."""
    engine, me = guest.engine, guest.engine.signer.peer
    engine.history = None  # it would say again what is true
    number = engine.membership.records.seq((STORED, me)) + 1
    again = Lineage(AGAIN, electors=(elector,))
    engine.perform(Publish(STORED, me, number, encode_stored(Stored(again))))


async def members_and_guests(
    swarm: TestSwarm, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Volunteer], list[Volunteer]]:
    monkeypatch.setattr("protocol.recovery.machine.OUTVOTED_S", SOON_S)
    members = [await swarm.add(0, founder=True), await swarm.add(1)]
    swarm.start()
    guests = [await work_once(swarm, members) for _ in range(GUESTS)]
    for guest in guests:
        says_again(guest, guests[0].engine.signer.peer)
    return members, guests


@pytest.mark.slow
async def test_members_that_once_worked_do_not_reset_a_run_that_trains(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_swarm(tmp_path, steps=5000) as swarm:
        members, _ = await members_and_guests(swarm, monkeypatch)
        await trio.sleep(6 * SOON_S)
        before = [one.step(stage) for stage, one in enumerate(members)]
        await swarm.until(lambda: all(one.step(s) > before[s] for s, one in enumerate(members)))
        assert AGAIN not in {era(one) for one in members}


@pytest.mark.long
async def test_by_voices_alone_they_would(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before shows something only because this one ends otherwise."""
    monkeypatch.setattr(Electorates, "second", lambda self, follows, is_gone: True)
    async with open_swarm(tmp_path, steps=5000) as swarm:
        members, _ = await members_and_guests(swarm, monkeypatch)
        await swarm.until(lambda: {era(one) for one in members} == {AGAIN})
