"""Lineages that nobody has made, told by one identity and by members that it invents."""

from functools import partial

import trio

from protocol.recovery.stored import Stored, begun
from protocol.wire.fields import MAX_NUMBER
from tests.hostile.attack import Attack, Bounds
from tests.hostile.forged import forged_states, invented, keep_telling, lineage_of, serve
from tests.hostile.stranger import Stranger

VERSIONS = (777_777, 77_777)
"""Beyond the run's 100,000 steps, and among them but out of reach."""
EACH_S = 12.0
LATER = 1
"""One roll-back after the first lineage, to the beginning of the run."""
LATER_MEMBERS = 80
"""More than are linked with each other, so that adverts without a link count as live."""
LAST = MAX_NUMBER
"""The most roll-backs that an era can hold: who follows it can never roll back again."""
LAST_MEMBERS = 20
CHECKPOINT_STEPS = 50


async def forged_version(stranger: Stranger) -> None:
    """Name one version after the other; states of zeros pass every check but belief."""
    stranger.pulse()
    await stranger.introduce()
    for number, version in enumerate(VERSIONS, start=1):
        states = forged_states(stranger.manifest)
        said = lineage_of(number, version, states, stranger.signer.peer)
        with trio.move_on_after(EACH_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_telling, stranger, [stranger.signer], said)
                nursery.start_soon(serve, stranger, states)


async def followed_by(stranger: Stranger, number: int, members: int) -> None:
    """Follow a lineage after so many roll-backs ourselves; the other members are only told of."""
    stranger.pulse()
    signers = [stranger.signer, *invented(members)]
    lineage = begun(number, 0, (), (stranger.signer.peer,), b"")
    await keep_telling(stranger, signers, Stored(lineage))


ATTACKS = (
    Attack(
        name="lineage-forged-version",
        issue="B1",
        what="One identity beside two volunteers follows a lineage at version 777777 and "
        "serves it.",
        stranger=forged_version,
        honest=2,
    ),
    Attack(
        name="lineage-invented-members",
        issue="B1",
        what="80 invented members are told of over one link; all follow a later lineage, "
        "version 0.",
        stranger=partial(followed_by, number=LATER, members=LATER_MEMBERS),
    ),
    Attack(
        name="era-brick",
        issue="B2",
        what="Records name the last lineage that can be; one of two volunteers is killed and comes "
        "back meanwhile.",
        stranger=partial(followed_by, number=LAST, members=LAST_MEMBERS),
        honest=2,
        restarts=True,
        bounds=Bounds(steps_lost=4 * CHECKPOINT_STEPS),
    ),
)
