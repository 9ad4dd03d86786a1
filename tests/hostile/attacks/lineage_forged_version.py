"""One identity that follows a lineage of its own, far ahead of the run, and serves its weights."""

from __future__ import annotations

import trio

from protocol.recovery.stored import ERA_BITS
from tests.hostile.attack import Attack
from tests.hostile.forged import forged_states, keep_telling, lineage_of, serve
from tests.hostile.stranger import Stranger

VERSIONS = (777_777, 77_777)
"""Beyond the run's 100,000 steps, and among them but out of reach."""
EACH_S = 12.0


async def attack(stranger: Stranger) -> None:
    """Name one version after the other; states of zeros pass every check but belief."""
    stranger.pulse()
    await stranger.introduce()
    for number, version in enumerate(VERSIONS, start=1):
        states = await forged_states(stranger, version)
        said = lineage_of(number << ERA_BITS, version, states)
        with trio.move_on_after(EACH_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_telling, stranger, [stranger.signer], said)
                nursery.start_soon(serve, stranger, version, states)


ATTACK = Attack(
    name="lineage-forged-version",
    issue="B1",
    what="One identity beside two volunteers follows a lineage at version 777777 and serves it.",
    stranger=attack,
    honest=2,
)
