"""What a status says of a running matching: seats, stages, reasons."""

from pathlib import Path

import msgspec
from trio.testing import MockClock

from client.control.snapshot import MatchesView
from client.node.matches import describe_matching
from tests.support.train_swarm import ADVERT, TestSwarm, Volunteer, open_swarm

SEATED = msgspec.structs.replace(ADVERT, seats=1)
"""An advert that the matching reckons with."""


async def matched_swarm(swarm: TestSwarm, count: int = 3) -> list[Volunteer]:
    """Volunteers that have found their stages by the real matching."""
    volunteers = [await swarm.add() for _ in range(count)]
    for volunteer in volunteers:
        volunteer.engine.describe(SEATED, has_data=True)
    await swarm.until(lambda: all(volunteer.engine.served for volunteer in volunteers))
    return volunteers


def described(volunteer: Volunteer) -> MatchesView:
    now = describe_matching(volunteer.engine, volunteer.held_stages.seats())
    assert now is not None
    return now


async def test_before_the_matching_has_begun(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_swarm(tmp_path) as swarm:
        alone = await swarm.add()
        assert describe_matching(alone.engine, alone.held_stages.seats()) is None


async def test_a_volunteer_that_waits_says_so(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_swarm(tmp_path, stages=3) as swarm:
        alone = await swarm.add()
        alone.engine.describe(SEATED, has_data=True)
        await swarm.until(lambda: alone.engine.matching is not None and described(alone).stages)
        now = described(alone)
        assert [seat.seat for seat in now.seats] == [0]
        assert now.seats[0].state in ("free", "proposed", "held")
        assert now.decides == [0, 1, 2]
        assert all(stage.seat is None for stage in now.stages)


async def test_everybody_tells_its_seat_and_its_reasons(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_swarm(tmp_path, stages=2, steps=1000) as swarm:
        volunteers = await matched_swarm(swarm)
        for volunteer in volunteers:
            now = described(volunteer)
            home = now.seats[0]
            assert (now.state, home.state, home.seat) == ("serving", "serving", 0)
            assert [stage.seat for stage in now.stages if stage.stage == home.stage] == [0]
            assert {stage.stage for stage in now.stages} == {0, 1}
