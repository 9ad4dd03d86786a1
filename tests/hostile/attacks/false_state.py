"""A state that is not that of its hash, given to whoever asks a replica for its state."""

import msgspec
import trio

from protocol.wire.messages import ChunkRequest, Heartbeat
from tests.hostile.attack import Attack
from tests.hostile.forged import answer, forged_states
from tests.hostile.stranger import Stranger

STAGE = 0


async def attack(stranger: Stranger) -> None:
    """Say that we hold the stage, and answer every question for its state with zeros."""
    states = forged_states(stranger.manifest)
    stranger.pulse()
    await stranger.introduce()
    async for heard in stranger.heard:
        match heard.message:
            case Heartbeat(seats=seats):
                held = [seat for seat in seats if seat.stage == STAGE and seat.state == "serving"]
                if held and not stranger.seats:
                    await stranger.introduce(held)
                if held:
                    ours = msgspec.structs.replace(held[0], rate=1e-3, queue=100, missing=())
                    stranger.seats = [ours]
            case ChunkRequest(version=version) as request if version:
                await answer(stranger, heard.peer, request, states)
            case _:
                await trio.lowlevel.checkpoint()


ATTACK = Attack(
    name="false-state",
    issue="B7",
    what="A claimed replica gives zeros to whoever asks for its state.",
    stranger=attack,
    lasts_s=60.0,
    rest_s=120.0,
)
