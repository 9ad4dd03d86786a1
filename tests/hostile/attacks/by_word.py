"""One identity that never does any work: its heartbeats say that it serves a stage, or it shows
commits that nobody else has voted for."""

from functools import partial

import msgspec

from protocol.decree.decree import VOTE, digest_of, encode_ballot
from protocol.wire.messages import Commit, Heartbeat, Propose
from protocol.wire.parts import Ballot, Decree, SeatStatus
from tests.hostile.attack import Attack
from tests.hostile.stranger import Stranger

AHEAD = 3
"""Steps: the open one, and two more."""


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


async def commit_ahead(stranger: Stranger) -> None:
    """Show everybody commits of the steps that come next, by our own vote alone, and ask for
    promises of them: an elector that goes on to such a step is silent in the one that is open."""
    stranger.pulse()
    await stranger.introduce()
    async for heard in stranger.heard:
        if isinstance(heard.message, Heartbeat):
            for seat in heard.message.seats:
                for step in range(seat.version, seat.version + AHEAD):
                    await stranger.say_to_all(_forged(stranger, seat, step))
                    await stranger.say_to_all(Propose(seat.stage, step, 2, era=seat.era))


def _forged(stranger: Stranger, seat: SeatStatus, step: int) -> Commit:
    me = stranger.me
    decree = Decree(1, b"x" * 32, (me,), (me,), 0.0, (bytes(64),))
    ballot = Ballot(seat.stage, seat.era, step, 1, me, 1, digest_of(decree))
    vote = stranger.signer.sign(VOTE, encode_ballot(ballot), stranger.swarm).signature
    return Commit(seat.stage, step, 1, me, decree, ((me, vote),), era=seat.era)


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
    Attack(
        name="commits-ahead",
        issue="B4",
        what="A stranger shows commits of the next three steps that it alone has voted for.",
        stranger=commit_ahead,
    ),
)
