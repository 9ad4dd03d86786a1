"""A replica that its neighbours have cut off cannot decide with its sibling alone."""

from tests.support.train_swarm import open_swarm


async def test_a_replica_without_its_neighbours_names_no_electors_of_its_own(tmp_path) -> None:
    """It leads half of the steps, and sees its sibling alone: the sibling sees the others, too."""
    async with open_swarm(tmp_path, steps=60) as swarm:
        first, second, sibling = [await swarm.add(stage) for stage in (0, 0, 1)]
        cut_off = await swarm.add(1)
        await swarm.until(lambda: cut_off.serves(1) and sibling.serves(1) and second.serves(0))
        quorum = sibling.held(1).driver.seat.quorum
        before = {first.peer, second.peer}
        await swarm.until(lambda: sibling.step(1) >= 4 and len(quorum.electors) == 4)
        swarm.hub.partition([cut_off.peer], sorted(before))
        step = sibling.step(1)

        def goes_on() -> bool:
            assert before <= quorum.electors, "who is cut off has named others"
            return sibling.step(1) >= step + 8 and first.step(0) >= step + 8

        await swarm.until(goes_on)
        assert not any(one.engine.internal_errors for one in swarm.volunteers)
