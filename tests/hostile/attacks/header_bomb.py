"""A state whose header takes long to multiply, offered to whoever asks a replica for its state."""

from __future__ import annotations

import json
import sys

import msgspec
import trio

from client.train.transfer.state_size import data_bytes
from protocol.wire.messages import BlobQuery, Chunk, ChunkRequest, Heartbeat
from tests.hostile.attack import Attack
from tests.hostile.forged import blob_of, part
from tests.hostile.stranger import Stranger

STAGE = 0
HEADER_BYTES = 2**21 - 64


async def attack(stranger: Stranger) -> None:
    """Say that we hold the stage, and answer every question for its state with the bomb."""
    taken = 0
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
            case BlobQuery(kind="state", stage=stage, version=version):
                data = bomb(stranger, stage, version)
                await stranger.say(heard.peer, blob_of(stage, version, data).offer)
            case ChunkRequest(kind="state", stage=stage, version=version, index=index):
                taken += 1
                print(f"{taken} chunks of it were taken", file=sys.stderr, flush=True)
                piece = part(bomb(stranger, stage, version), index)
                await stranger.say(heard.peer, Chunk("state", stage, version, index), piece)
            case _:
                await trio.lowlevel.checkpoint()


def bomb(stranger: Stranger, stage: int, version: int) -> bytes:
    """Return a file as large as a state of this stage may be: a header of dimensions."""
    names = [f"{prefix}w" for prefix in stranger.manifest.state.sections]
    dimensions = (HEADER_BYTES - 2000) // (2 * len(names))
    tensor = {"dtype": "F32", "shape": [2] * dimensions, "data_offsets": [0, 4]}
    metadata = {
        "format": "volunteer-stage-1",
        "hash": "0" * 64,
        "stage": str(stage),
        "stages": str(stranger.manifest.stage_count),
        "swarm": stranger.swarm,
        "version": str(version),
    }
    header = {"__metadata__": metadata, **dict.fromkeys(names, tensor)}
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes(stranger.manifest, stage))


ATTACK = Attack(
    name="header-bomb",
    issue="B7",
    what="A claimed replica serves a state whose header has as many dimensions as fit.",
    stranger=attack,
    lasts_s=60.0,
    rest_s=120.0,
)
