"""Copies of a neighbour's checkpoints: a lying replica cannot push copies out or delay them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from protocol.recovery.stored import Copy
from protocol.view import Replica, SwarmView
from tests.support.buddies_world import EVERY, STAGES, A, B, C, Member, World, open_world


@pytest.fixture
async def world(tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> World:
    return open_world(tmp_path, nursery, monkeypatch)


def kept(member: Member) -> list[int]:
    """Versions of stage 0 on its disk."""
    return [c.version for c in member.folder.entries() if c.stage == 0]


async def two_copies(world: World, nursery: trio.Nursery) -> tuple[Member, Member]:
    """A replica of stage 0 that will lie, and the keeper of two checkpoints of it."""
    liar, keeper = world.members[A], world.members[B]
    nursery.start_soon(keeper.buddies.run)
    for version in (EVERY, 2 * EVERY):
        world.serve(version + 1, "a", "b")
        await liar.store((0, version))
        await world.until(lambda v=version: keeper.has(0, v))
    return liar, keeper


async def test_versions_past_what_a_stage_has_push_nothing_out(
    world: World, nursery: trio.Nursery
) -> None:
    liar, keeper = await two_copies(world, nursery)
    for version in (5 * EVERY + 1, 5 * EVERY + 2):
        await liar.store((0, version))
        await trio.sleep(30)
    assert kept(keeper) == [EVERY, 2 * EVERY]


async def test_versions_past_what_a_stage_can_have_push_nothing_out(
    world: World, nursery: trio.Nursery
) -> None:
    """Its heartbeats say it is there; we, next to it, know better."""
    liar, keeper = await two_copies(world, nursery)
    for version in (5 * EVERY, 6 * EVERY):
        await liar.store((0, version))
        ours = Replica(B, 2 * EVERY + 1, True)
        world.view = SwarmView.of([[Replica(A, version, True)], [ours], []])
        await trio.sleep(60)
    assert kept(keeper) == [EVERY, 2 * EVERY]


async def test_copies_out_of_turn_leave_the_newest_that_was_due(
    world: World, nursery: trio.Nursery
) -> None:
    holder, keeper = world.members[A], world.members[B]
    nursery.start_soon(keeper.buddies.run)
    world.serve(EVERY, "a", "b")
    await holder.store((0, EVERY))
    await world.until(lambda: keeper.has(0, EVERY))
    for version in range(EVERY + 1, EVERY + 5):
        world.serve(version, "a", "b")
        await holder.store((0, version))
        assert await holder.buddies.hand_over(0, version, 60.0)
    assert kept(keeper) == [EVERY, EVERY + 3, EVERY + 4]


async def test_what_every_stage_has_stays_however_old(world: World, nursery: trio.Nursery) -> None:
    holder, keeper = world.members[A], world.members[B]
    keeper.history.whole = {(stage, EVERY) for stage in range(STAGES)}
    nursery.start_soon(keeper.buddies.run)
    for number in range(1, 5):
        world.serve(number * EVERY, "a", "b")
        await holder.store((0, number * EVERY))
        await world.until(lambda v=number * EVERY: keeper.has(0, v))
    assert kept(keeper) == [EVERY, 3 * EVERY, 4 * EVERY]


@pytest.mark.parametrize(("named", "timeout_s"), [([1], 45.0), ([1, 3], 60.0), ([0], 120.0)])
async def test_who_names_and_does_not_give_keeps_no_others_from_it(
    world: World,
    nursery: trio.Nursery,
    named: list[int],
    timeout_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    liar, honest, keeper = world.members[A], world.members[C], world.members[B]
    monkeypatch.setattr(liar, "take", lambda *_: None)  # for any request
    world.serve(EVERY + 3, "ac", "b")
    due = 0 not in named
    await honest.store((0, EVERY + 2), *[(0, EVERY)] * due)
    liar.say(*(Copy(0, EVERY + ahead, bytes(32)) for ahead in named))
    nursery.start_soon(keeper.buddies.run)
    await trio.sleep(5)
    assert await honest.buddies.hand_over(0, EVERY + 2, timeout_s)
    assert kept(keeper) == [*[EVERY] * due, EVERY + 2]
