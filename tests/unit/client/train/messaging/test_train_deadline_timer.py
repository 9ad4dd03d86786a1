"""The frequency of ticks: soon after a message, but not once for each of many."""

import time

import pytest
import trio
import trio.testing

from client.train.messaging.deadline_timer import DeadlineTimer


@pytest.mark.trio(run=trio.run)
async def test_a_flood_of_messages_shares_its_ticks(nursery: trio.Nursery) -> None:
    """Measured in time of this processor: other work of the machine is no part of a tick."""
    ticked_s = list[float]()

    def tick() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.001:
            pass
        ticked_s.append(time.thread_time() - began)

    timer = DeadlineTimer(lambda: [None], tick)
    nursery.start_soon(timer.run)
    began = time.perf_counter()
    for _ in range(20_000):
        timer.wake()
        await trio.lowlevel.checkpoint()
        if time.perf_counter() - began > 0.5:
            break
    elapsed_s = time.perf_counter() - began
    assert ticked_s
    assert sum(ticked_s[1:]) < 0.4 * elapsed_s


async def test_one_message_is_followed_by_a_tick_at_once(nursery: trio.Nursery) -> None:
    ticked = trio.Event()
    timer = DeadlineTimer(lambda: [None], ticked.set)
    nursery.start_soon(timer.run)
    await trio.testing.wait_all_tasks_blocked()
    timer.wake()
    await trio.testing.wait_all_tasks_blocked()
    assert ticked.is_set()


async def test_a_tick_that_changes_something_is_not_followed_by_another_at_once() -> None:
    ticks = list[float]()

    def tick() -> None:
        ticks.append(trio.current_time())
        timer.wake()

    timer = DeadlineTimer(lambda: [None], tick)
    with trio.move_on_after(10):
        await timer.run()
    assert 18 <= len(ticks) <= 21
