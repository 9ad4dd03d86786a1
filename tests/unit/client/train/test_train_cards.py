"""A volunteer with several devices in a 2 x 2 swarm: one seat, one ledger, nothing lost.

``assert_exact`` holds I1, I2 and I5, and every loss against one process (I3, I4): only the order of
sums differs, within 1e-5 of a loss for 20 steps and 1e-3 later.
"""

from pathlib import Path

import pytest

from tests.support.train_swarm import open_swarm


@pytest.mark.parametrize("stage", [0, 1])
async def test_several_cards_are_one_seat_and_their_death_loses_nothing(
    stage: int, tmp_path: Path
) -> None:
    async with open_swarm(tmp_path, steps=12, microbatches=12) as swarm:
        for place in (0, 1, 1 - stage):
            await swarm.add(place)
        several = await swarm.add(stage, device="cpu:0,cpu:1,cpu:2")
        await swarm.until(lambda: several.step(stage) >= 2 and several.serves(stage))
        cards = several.held(stage).worker._executor._cards
        await swarm.until(lambda: all(card.replica.counted for card in cards.all))
        several.held(stage).worker.die()
        await swarm.until(lambda: several.held_stages.counters.worker_restarts == 1)
        await swarm.until_done()
        swarm.assert_exact()
