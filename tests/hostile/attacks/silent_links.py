"""Links that prove an identity and then say nothing, as many as fill every place of a node."""

from __future__ import annotations

import trio

from tests.hostile.attack import Attack
from tests.hostile.bare import again_and_again, proved
from tests.hostile.stranger import Stranger

LINKS = 34 * 8
PER_S = 60.0


async def attack(stranger: Stranger) -> None:
    """Hold a silent link in every place, and take it again when it is lost."""

    async def hold(number: int) -> None:
        address = stranger.addresses[number % len(stranger.addresses)]
        async with proved(address) as link:
            while await link.channel.receive():
                await trio.sleep(0)

    await again_and_again(LINKS * len(stranger.addresses), PER_S, hold)


ATTACK = Attack(
    name="silent-links",
    issue="B6",
    what="272 links to each node prove an identity and say nothing.",
    stranger=attack,
    rest_s=120.0,
)
