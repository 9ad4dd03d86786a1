"""One identity whose heartbeats say that it serves a stage, and that never does any work."""

from __future__ import annotations

from functools import partial

import msgspec

from protocol.wire.messages import Heartbeat
from protocol.wire.parts import SeatStatus
from tests.hostile.attack import Attack
from tests.hostile.stranger import Stranger


async def boast(stranger: Stranger, stage: int, ahead: int = 0) -> None:
    """Say the seat that an honest replica of the stage has, whatever that is, as our own; so many
    versions ``ahead`` of it."""
    stranger.pulse()
    await stranger.introduce()
    async for heard in stranger.heard:
        if not isinstance(heard.message, Heartbeat):
            continue
        for seat in heard.message.seats:
            if seat.stage == stage and seat.state == "serving":
                version = seat.version + ahead
                ours = msgspec.structs.replace(seat, version=version, rate=1e6, queue=0, missing=())
                await _say(stranger, ours)


async def _say(stranger: Stranger, seat: SeatStatus) -> None:
    if stranger.seats != [seat]:
        fresh = not stranger.seats
        stranger.seats = [seat]
        if fresh:
            await stranger.introduce([seat])


ATTACKS = (
    Attack(
        name="seat-by-word",
        issue="B4",
        what="A stranger's heartbeats say that it serves stage 0.",
        stranger=partial(boast, stage=0),
    ),
    Attack(
        name="seat-by-word-last",
        issue="B4",
        what="A stranger's heartbeats say that it serves the last stage, at a high rate.",
        stranger=partial(boast, stage=1),
    ),
    Attack(
        name="version-by-word",
        issue="B4",
        what="A stranger's heartbeats say that it serves stage 0, a thousand versions ahead.",
        stranger=partial(boast, stage=0, ahead=1_000),
    ),
)
