"""Connections that come, prove an identity and go, without end."""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.bare import again_and_again, proved
from tests.hostile.stranger import Stranger

PER_S = 70.0


async def attack(stranger: Stranger) -> None:
    """Connect to one node after the other with a new identity each time."""

    async def cycle(number: int) -> None:
        async with proved(stranger.addresses[number % len(stranger.addresses)]):
            return

    await again_and_again(8 * len(stranger.addresses), PER_S, cycle)


ATTACK = Attack(
    name="connect-cycles",
    issue="B6",
    what="4,000 connections prove an identity and end.",
    stranger=attack,
    lasts_s=60.0,
    rest_s=120.0,
)
