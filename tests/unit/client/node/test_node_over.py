"""A node that is asked to end does so, whatever its members advertise."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from client.node.node import MEET_S, Node, save_every_minute
from protocol.ids import PeerId

MEMBERS = [PeerId("a"), PeerId("b"), PeerId("c")]


def a_node() -> Any:
    """A node that holds no stage, beside members whose names nobody answers for."""
    node: Any = Node.__new__(Node)
    node.asked = list[Sequence[str]]()

    async def in_reach(addresses: Sequence[str]) -> list[str]:
        node.asked.append(addresses)
        await trio.sleep_forever()
        return []

    roster = SimpleNamespace(addresses=lambda peer: [peer], is_guest=lambda peer: peer != "c")
    links = SimpleNamespace(peers=MEMBERS)
    node._stop_asked = trio.Event()
    node._options = SimpleNamespace(exit_when_done=False)
    node._network = SimpleNamespace(in_reach=in_reach, statistics=lambda: links)
    node._engine = SimpleNamespace(
        amending=SimpleNamespace(book=SimpleNamespace(steps=8)),
        membership=SimpleNamespace(roster=roster),
    )
    held = SimpleNamespace(failure=None, drivers=list)
    node._training = SimpleNamespace(held_stages=held)
    return node


async def test_the_end_waits_for_no_name(autojump_clock: trio.testing.MockClock) -> None:
    node = a_node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node._until_over)
        await trio.sleep(2 * MEET_S)
        node._stop_asked.set()
        with trio.fail_after(1):
            while nursery.child_tasks:
                await trio.sleep(0.1)


async def test_who_has_worked_is_remembered_first(autojump_clock: trio.testing.MockClock) -> None:
    node = a_node()
    with trio.move_on_after(MEET_S):
        await node._keep_meeting()
    assert node.asked == [["c"]]


async def test_what_changes_is_saved_when_the_node_ends() -> None:
    saved: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(save_every_minute, [lambda: saved.append(len(saved))])
        await trio.testing.wait_all_tasks_blocked()
        before = list(saved)
        nursery.cancel_scope.cancel()
    assert len(saved) == len(before) + 1
