"""What is saved every minute is saved at the end, too."""

from __future__ import annotations

import trio
import trio.testing

from client.store.saving import save_every_minute


async def test_what_changes_is_saved_when_the_node_ends() -> None:
    saved: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(save_every_minute, [lambda: saved.append(len(saved))])
        await trio.testing.wait_all_tasks_blocked()
        before = list(saved)
        nursery.cancel_scope.cancel()
    assert len(saved) == len(before) + 1
