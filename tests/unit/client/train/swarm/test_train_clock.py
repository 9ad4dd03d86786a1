"""A volunteer whose clock is wrong does not train, says why, and begins once it is right."""

import trio
import trio.testing

from client.train.training import Training
from tests.support.train_swarm import TestSwarm, Volunteer, training_of


def said_by(volunteer: Volunteer) -> str:
    return "\n".join(f"{event.level} {event.words}" for event in volunteer.events)


async def linked(swarm: TestSwarm, a: Volunteer, b: Volunteer) -> None:
    await swarm.until(lambda: b.peer in a.engine.handshake.admitted)
    await swarm.until(lambda: a.peer in b.engine.handshake.admitted)


async def test_a_clock_that_is_ten_minutes_ahead_waits_until_it_is_set(swarm: TestSwarm) -> None:
    member = await swarm.add(ahead_s=0.0)
    wrong = await swarm.add(ahead_s=600.0)
    training = training_of(Training, wrong, swarm.folder / "own")
    await linked(swarm, member, wrong)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(training.clock_agrees)
        await trio.sleep(20)
        assert "clock is 600 s ahead of that of the only member" in training.phase
        assert "timedatectl" in training.phase
        assert said_by(wrong).count("error this machine's clock is 600 s ahead") == 1
        assert "warning our clock is 600 s behind" in said_by(member)
        wrong.engine.wall = member.engine.wall
    assert "the clocks agree now" in said_by(wrong)
