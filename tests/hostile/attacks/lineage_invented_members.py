"""Adverts and records of many invented members, all over one link, that name a later lineage."""

from __future__ import annotations

from protocol.recovery.stored import ERA_BITS, Lineage, Stored
from tests.hostile.attack import Attack
from tests.hostile.forged import invented, keep_telling
from tests.hostile.stranger import Stranger

MEMBERS = 80
"""More than are linked with each other, so that adverts without a link count as live."""
LATER = Lineage(era=(1 << ERA_BITS) + 12_345)
"""One roll-back after the first lineage, to the beginning of the run."""


async def attack(stranger: Stranger) -> None:
    """Be one of them ourselves; the others are only told of."""
    stranger.pulse()
    signers = [stranger.signer, *invented(MEMBERS)]
    await keep_telling(stranger, signers, Stored(LATER))


ATTACK = Attack(
    name="lineage-invented-members",
    issue="B1",
    what="80 invented members are told of over one link; all follow a later lineage, version 0.",
    stranger=attack,
)
