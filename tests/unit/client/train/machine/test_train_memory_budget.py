"""The memory of one machine, shared by the stages it holds."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from client.compute.memory import memory_need
from client.errors import UserError
from client.train.machine.memory_budget import MOST_STAGES, MemoryBudget
from client.train.workers.opening import MOST_GRAPHS, Devices, fit_stage
from tests.support.protocol_examples import manifest

FOUR = manifest(stages=4)
ONE = max(memory_need(FOUR, stage).total_bytes for stage in range(4)) / 0.85


def memory_budget(stages: float, *, drains: Callable[[], bool] = bool) -> MemoryBudget:
    return MemoryBudget(FOUR, lambda: Devices(int(stages * ONE) + 1), drains=drains)


async def test_three_stages_fit_and_no_fourth() -> None:
    plenty = memory_budget(1000)
    for stage in range(MOST_STAGES):
        assert plenty.has_room()
        assert (await plenty.take(stage)).graphs == MOST_GRAPHS
    assert not plenty.has_room()
    with pytest.raises(UserError, match="3 stages"):
        await plenty.take(3)


async def test_what_does_not_fit_beside_the_others_is_refused() -> None:
    tight = memory_budget(1)
    await tight.take(0)
    assert not tight.has_room()
    with pytest.raises(UserError, match="of memory"):
        await tight.take(1)
    tight.release(0)
    await tight.take(1)


async def test_a_stage_leaves_the_others_room_before_it_keeps_graphs() -> None:
    both = memory_budget(2.5)
    first = await both.take(0)
    assert first.graphs >= 1
    await both.take(1)
    assert both.free_bytes > 0
    greedy = fit_stage(FOUR, 0, int(2.5 * ONE))
    assert first.graphs < greedy.graphs


async def test_the_next_one_waits_for_the_one_that_leaves() -> None:
    tight = memory_budget(1, drains=lambda: True)
    await tight.take(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tight.take, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not tight.has_room()
        tight.release(0)
        with trio.fail_after(1):
            while tight.has_room():
                await trio.sleep(0.01)
    assert tight.free_bytes < ONE


async def test_one_that_stays_after_all_is_not_waited_for() -> None:
    drains = [True]
    tight = memory_budget(1, drains=lambda: bool(drains))
    await tight.take(0)

    async def stays() -> None:
        await trio.testing.wait_all_tasks_blocked()
        drains.clear()
        tight.look()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stays)
        with pytest.raises(UserError):
            await tight.take(1)
