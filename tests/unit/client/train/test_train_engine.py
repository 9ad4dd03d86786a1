"""The engine between the membership, the matching and the seats."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from client.events import PeerChanged
from client.train.engine import Engine
from protocol.effects import Publish
from protocol.ids import PeerId
from protocol.limits import MAX_ADVERT_TTL_S
from protocol.matching.machine import Matching
from protocol.membership.shared import POSTING
from tests.support.train_swarm import ADVERT, open_swarm


async def test_who_enters_late_hears_what_stewards_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its worker takes seconds to start; a posting is repeated every twenty. Without it, it would
    take the stage for vacant and itself for the steward."""
    heard: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Matching, "receive_record", lambda _, *said: heard.append(said[:3]) or [])
    async with open_swarm(tmp_path) as swarm:
        steward, late = await swarm.add(), await swarm.add()
        peer = steward.engine.signer.peer
        steward.engine.perform(Publish(POSTING, "0", 7, b"words"))
        await swarm.until(late.engine.membership.heard_before)
        assert not heard
        late.engine.describe(ADVERT, has_text=True)
        assert heard == [(peer, POSTING, b"words")]


async def test_a_record_heard_before_cannot_stop_who_enters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    heard: list[bytes] = []

    def receive(_: Matching, author: PeerId, kind: str, body: bytes, now: float) -> list[Any]:
        heard.append(body)
        if body == b"poison":
            raise ValueError("a bug of ours")
        return []

    monkeypatch.setattr(Matching, "receive_record", receive)
    async with open_swarm(tmp_path) as swarm:
        steward, late = await swarm.add(), await swarm.add()
        steward.engine.perform(Publish(POSTING, "0", 7, b"poison"))
        steward.engine.perform(Publish(POSTING, "1", 7, b"words"))
        await swarm.until(lambda: len(late.engine.membership.heard_before()) == 2)
        late.engine.describe(ADVERT, has_text=True)
        assert sorted(heard) == [b"poison", b"words"]
        assert late.engine.error_boundary.internal_errors == 1


async def test_who_has_a_slow_line_reduces_nothing_and_every_step_is_exact(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The limit that an owner has set reaches the leader's plan."""
    async with open_swarm(tmp_path, steps=6) as swarm:
        slow = await swarm.add(0)
        engine, own = slow.engine, dict[str, int]()
        limited = msgspec.structs.replace(ADVERT, upload_limit_bytes_per_s=1e5)
        engine._members(engine.membership.describe(limited, engine.now(), engine.wall()))
        for stage in (0, 0, 1):
            await swarm.add(stage)
        swarm.start()

        def planned() -> bool:
            driver = slow.held(0).driver
            plan = driver.seat.member.plan_followed if driver else None
            if plan is not None:
                sizes = [end - start for start, end in itertools.pairwise(plan.bounds)]
                owners = [member.peer for member in plan.members]
                own.update(zip(owners, sizes, strict=True))
            return len(own) == 3

        await swarm.until(planned)
        assert own.pop(engine.signer.peer) == 0
        assert min(own.values()) > 0
        await swarm.until_done()
        swarm.assert_exact()


async def test_what_somebody_had_is_forgotten_when_its_record_expires(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_swarm(tmp_path) as swarm:
        stayer, gone = await swarm.add(), await swarm.add()
        history, peer = stayer.engine.history, gone.engine.signer.peer
        assert history is not None
        await swarm.until(lambda: peer in history.machine._stored)
        swarm.vanish(gone)
        wall, later = time.time, MAX_ADVERT_TTL_S
        monkeypatch.setattr(Engine, "wall", lambda _: wall() + later)
        await swarm.until(lambda: peer not in history.machine._stored)
        assert stayer.engine.signer.peer in history.machine._stored


@pytest.mark.parametrize("shift_s", [3600.0, -3600.0])
async def test_the_matching_follows_the_clock_when_it_is_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    shift_s: float,
) -> None:
    """After a suspend the monotonic clock lags behind; every posting of others looked stale."""
    async with open_swarm(tmp_path) as swarm:
        engine = (await swarm.add()).engine
        engine.describe(ADVERT, has_text=True)
        wall = engine.wall() + shift_s
        monkeypatch.setattr(engine, "wall", lambda: wall)
        engine._tick()
        assert engine.matching is not None
        assert engine.matching._context.wall_s(engine.now()) == pytest.approx(wall, abs=1)


async def test_only_a_signed_departure_is_told_as_one_in_order(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        stayer, leaver, victim = await swarm.add(), await swarm.add(), await swarm.add()
        gone: dict[PeerId, bool] = {}

        def told() -> bool:
            events = [entry.event for entry in stayer.engine.event_sink.log.since(0).entries]
            changes = [event for event in events if isinstance(event, PeerChanged)]
            gone.update({event.peer: event.in_order for event in changes if event.state == "down"})
            return len(gone) == 2

        await swarm.until(lambda: len(stayer.engine.membership.roster.live()) == 3)
        leaver.engine.leave()
        swarm.vanish(victim)
        await swarm.until(told)
        assert gone == {leaver.engine.signer.peer: True, victim.engine.signer.peer: False}
