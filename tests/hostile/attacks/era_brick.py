"""A lineage at the end of the range of eras: a volunteer that follows it can never roll back
again."""

from __future__ import annotations

from protocol.recovery.stored import Lineage, Stored
from tests.hostile.attack import Attack, Bounds
from tests.hostile.forged import invented, keep_telling
from tests.hostile.stranger import Stranger

LAST_ERA = 2**53 - 1
MEMBERS = 20
CHECKPOINT_STEPS = 50


async def attack(stranger: Stranger) -> None:
    """Follow it ourselves, with some invented ones."""
    stranger.pulse()
    signers = [stranger.signer, *invented(MEMBERS)]
    await keep_telling(stranger, signers, Stored(Lineage(era=LAST_ERA)))


ATTACK = Attack(
    name="era-brick",
    issue="B2",
    what="Records name era 2^53-1; one of two volunteers is killed and comes back meanwhile.",
    stranger=attack,
    honest=2,
    restarts=True,
    bounds=Bounds(steps_lost=4 * CHECKPOINT_STEPS),
)
