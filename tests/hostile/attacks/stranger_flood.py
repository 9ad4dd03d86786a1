"""A hundred strangers that say small legal things all the time."""

from __future__ import annotations

import trio

from protocol.wire.messages import Heartbeat
from tests.hostile.attack import Attack
from tests.hostile.bare import again_and_again, bare_link
from tests.hostile.stranger import Stranger

STRANGERS = 100
EVERY_S = 0.05


async def attack(stranger: Stranger) -> None:
    """Say Hello and heartbeats without a seat, twenty a second each."""

    async def flood(number: int) -> None:
        address = stranger.addresses[number % len(stranger.addresses)]
        async with bare_link(address, stranger.swarm) as link:
            count = 0
            while not link.session.closed:
                count += 1
                await link.say(Heartbeat(count, []))
                await trio.sleep(EVERY_S)

    await again_and_again(STRANGERS, 40.0, flood)


ATTACK = Attack(
    name="stranger-flood",
    issue="B6",
    what="100 strangers say 20 heartbeats a second each.",
    stranger=attack,
    rest_s=120.0,
)
