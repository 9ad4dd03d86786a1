"""The queue: first come first served, no needless wake-ups, no turn lost, bounds for who puts."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from client.net.queues import ByteQueue

MIB = 1024 * 1024


def sizes(max_items: int = 1024, max_bytes: int = 64 * MIB) -> ByteQueue[int]:
    """A queue of numbers that are their own size."""
    return ByteQueue[int](lambda size: size, max_items, max_bytes)


async def test_those_who_wait_are_let_in_by_their_turn_and_are_not_overtaken() -> None:
    queue = sizes(max_items=2)
    queue.append(0)
    queue.append(1)
    async with trio.open_nursery() as nursery:
        for number in range(2, 30):
            nursery.start_soon(queue.put, number)
            await wait_all_tasks_blocked()
        taken = [queue.receive_nowait()]
        await wait_all_tasks_blocked()
        assert len(queue) == 2
        taken += [await queue.receive() for _ in range(29)]
    assert taken == list(range(30))


async def test_only_those_are_woken_who_can_go_on() -> None:
    queue, count = sizes(max_items=10), 200
    woken = list[int]()

    class Watch(trio.abc.Instrument):
        def task_scheduled(self, task: trio.lowlevel.Task) -> None:
            woken.append(id(task))

    async with trio.open_nursery() as nursery:
        for _ in range(10 + count):
            nursery.start_soon(queue.put, 1)
        await wait_all_tasks_blocked()
        watch = Watch()
        trio.lowlevel.add_instrument(watch)
        for _ in range(count):
            queue.receive_nowait()
            await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(watch)
    assert count <= len(woken) < 5 * count  # ours was waiting, too


async def test_who_gives_up_hands_its_turn_on() -> None:
    queue, scope = sizes(max_bytes=10), trio.CancelScope()
    queue.append(9)

    async def put_large() -> None:
        with scope:
            await queue.put(10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_large)
        await wait_all_tasks_blocked()
        nursery.start_soon(queue.put, 1)  # would fit, but it is not its turn
        await wait_all_tasks_blocked()
        assert len(queue) == 1
        scope.cancel()
    assert [queue.receive_nowait(), queue.receive_nowait()] == [9, 1]


async def test_a_put_is_either_cancelled_or_done() -> None:
    queue = sizes(max_items=1)
    queue.append(0)
    outcomes = list[str]()
    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(2)]

        async def put(number: int) -> None:
            with scopes[number - 1]:
                await queue.put(number)
                outcomes.append(f"{number} is in")

        for number in (1, 2):
            nursery.start_soon(put, number)
            await wait_all_tasks_blocked()
        scopes[1].cancel()  # before its turn: never in
        queue.receive_nowait()
        scopes[0].cancel()  # after its turn: in
    assert outcomes == ["1 is in"]
    assert queue.receive_nowait() == 1
    assert len(queue) == 0


async def test_what_is_wanted_no_more_once_there_is_room_is_not_put() -> None:
    queue, wanted = sizes(max_items=1), True
    queue.append(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.put, 1, lambda: wanted)
        await wait_all_tasks_blocked()
        wanted = False
        assert queue.receive_nowait() == 0
    assert len(queue) == 0


async def test_closing_ends_every_wait() -> None:
    queue, ended = sizes(max_items=1), list[str]()
    queue.append(7)

    async def put() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await queue.put(8)
        ended.append("put")

    async def get() -> None:
        assert await queue.receive() == 7
        with pytest.raises(trio.EndOfChannel):
            await queue.receive()
        ended.append("get")

    empty = sizes()

    async def get_from_none() -> None:
        with pytest.raises(trio.EndOfChannel):
            await empty.receive()

    async with trio.open_nursery() as nursery:
        for task in (put, get_from_none):
            nursery.start_soon(task)
        await wait_all_tasks_blocked()
        empty.close()
        queue.close()
        with pytest.raises(trio.ClosedResourceError):
            queue.append(9)
        nursery.start_soon(get)
    assert sorted(ended) == ["get", "put"]
