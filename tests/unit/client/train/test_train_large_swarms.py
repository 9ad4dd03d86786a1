"""Swarms in which nobody is linked with everybody: as those of more than 64, only smaller."""

from pathlib import Path

import pytest

from protocol import limits
from protocol.membership import roster
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm


@pytest.fixture
def near_links_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "FULL_MESH_UP_TO", 1)
    monkeypatch.setattr(roster, "HASH_NEIGHBOURS", 0)
    monkeypatch.setattr(roster, "FAR_NEIGHBOURS", 0)
    monkeypatch.setattr(limits, "MAX_ELECTORS", 1)  # those of a first step are linked with all


async def add_to_the_chain(swarm: TestSwarm, stage: int) -> Volunteer:
    """A volunteer that knows only the one before it when it comes."""
    everybody = list(swarm.volunteers)
    swarm.volunteers, swarm.dead = everybody[-1:], everybody[:-1]
    volunteer = await swarm.add(stage)
    swarm.volunteers, swarm.dead = [*everybody, volunteer], []
    return volunteer


@pytest.mark.usefixtures("near_links_only")
async def test_a_stage_we_have_no_link_with_is_not_empty_and_not_lost(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=3, stages=5) as swarm:
        for stage in range(5):
            await add_to_the_chain(swarm, stage)
        await swarm.until(lambda: all(v.step(n) == 3 for n, v in enumerate(swarm.volunteers)))
        (lineage,) = {v.lineage for v in swarm.volunteers}
        assert lineage.number == 0, "nothing was rolled back"
        ends = swarm.volunteers[0], swarm.volunteers[-1]
        one = next(v for v in ends if v.peer not in lineage.electors)
        unseen = one.held_stages.view.unseen
        assert unseen  # it is linked with its neighbour and with the elector
        assert all(one.held_stages.view.serving(stage) == () for stage in unseen)
