"""The memory of one machine, shared by the stages it holds."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from client.compute.memory import USUAL_GRAPHS
from client.errors import UserError
from client.limits.memory_shares import memory_left
from client.train.machine.memory_budget import CROWDED_S, MOST_STAGES, MemoryBudget
from client.train.workers.opening import MOST_GRAPHS, fit_stage, stage_need
from tests.support.protocol_examples import manifest

FOUR = manifest(stages=4)
ONE = max(stage_need(FOUR, stage).total_bytes for stage in range(4)) / 0.85


def memory_budget(stages: float) -> MemoryBudget:
    return MemoryBudget(FOUR, lambda: int(stages * ONE) + 1)


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


def two_on_a_machine(stages: float) -> tuple[MemoryBudget, MemoryBudget, list[str]]:
    """Two volunteers of a machine with memory for so many stages, and what the second says."""
    machine_bytes, held, said = int(stages * ONE) + 1, [0, 0], list[str]()

    def of(own: int) -> MemoryBudget:
        def hold(size_bytes: int) -> None:
            held[own] = size_bytes

        return MemoryBudget(
            FOUR,
            lambda: machine_bytes,
            left_bytes=lambda: memory_left(machine_bytes, machine_bytes, 1, [(1, held[1 - own])]),
            hold=hold,
            say=said.append if own else lambda words: None,
        )

    return of(0), of(1), said


async def test_volunteers_of_one_machine_do_not_take_more_than_it_has(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second, said = two_on_a_machine(1.5)
    taken = await first.take(0)
    assert taken.usual_bytes <= taken.size_bytes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.take, 1)
        await trio.sleep(60)
        assert not second._taken
        assert len(said) == 1
        assert "waiting for this machine's other volunteers: stage 1 needs" in said[0]
        first.release(0)
        with trio.fail_after(2 * CROWDED_S):
            while not second._taken:
                await trio.sleep(0.1)
    with trio.move_on_after(60) as gave_up:
        await first.take(2)
    assert gave_up.cancelled_caught
    with trio.fail_after(60):
        second.release(1)
        await first.take(2)


async def test_who_came_first_can_still_move_where_there_is_room() -> None:
    first, second, _ = two_on_a_machine(4)
    assert (await first.take(0)).graphs > USUAL_GRAPHS
    await second.take(1)
    with trio.fail_after(1):
        await first.take(2)


async def test_what_would_not_fit_alone_is_refused_and_not_waited_for() -> None:
    first, second, said = two_on_a_machine(0.5)
    for each in (first, second):
        with pytest.raises(UserError, match="may be used"):
            await each.take(0)
    assert not said


async def test_the_next_one_waits_for_the_one_that_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tight = memory_budget(1)
    await tight.take(0)
    tight.set_draining(0, True)
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
    tight = memory_budget(1)
    await tight.take(0)
    tight.set_draining(0, True)
    tight.set_draining(0, False)
    with pytest.raises(UserError):
        await tight.take(1)
