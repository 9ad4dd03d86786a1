"""A node that is asked to end does so, whatever its members advertise; and how it begins."""

import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from client.config import Settings
from client.control.snapshot import WHEN_DONE
from client.errors import UserError
from client.net.errors import PortInUse
from client.node.node import (
    CHECK_S,
    EVALUATED_S,
    LINGER_S,
    MEET_S,
    Node,
    _unless_stopped,
    listening,
    save_every_minute,
)
from protocol.ids import PeerId
from protocol.invite import SwarmFile

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
    node._training = SimpleNamespace(held_stages=SimpleNamespace(failure=None, drivers=list))
    return node


@pytest.mark.parametrize(
    ("over_s", "evaluated", "ends_s"),
    [(5.0, 8, 5.0), (math.inf, 8, LINGER_S), (5.0, 7, 5.0 + EVALUATED_S), (5.0, None, 10.0)],
)
async def test_the_end_of_the_run_is_told_once_and_ends_who_was_to_end_then(
    autojump_clock: trio.testing.MockClock, over_s: float, evaluated: int | None, ends_s: float
) -> None:
    """It stays for neighbours that close their last step, and for the last version's loss."""
    node, said, began = a_node(), list[str](), trio.current_time()
    known = SimpleNamespace(is_over=lambda: trio.current_time() >= began + over_s)
    held, seat = node._training.held_stages, SimpleNamespace(finished=True)
    held.history = SimpleNamespace(machine=SimpleNamespace(known=known))
    held.drivers = lambda: [SimpleNamespace(seat=seat)]
    last = None if evaluated is None else SimpleNamespace(version=evaluated)
    node._event_sink = SimpleNamespace(explain=lambda told: said.append(told.words), held_out=last)
    node._swarm = SimpleNamespace(manifest=SimpleNamespace(evaluation=object()))
    with trio.move_on_after(60.0):
        await node._until_over()
    assert trio.current_time() == began + 60.0, "it was not asked to end"
    assert said == [f"the run is complete after 8 steps; {WHEN_DONE}"]
    node._options.exit_when_done, began = True, trio.current_time()
    await node._until_over()
    assert trio.current_time() - began == pytest.approx(ends_s, abs=2 * CHECK_S)


async def test_who_looks_for_a_swarm_hears_that_it_is_to_stop() -> None:
    stop = trio.Event()

    async def nobody() -> SwarmFile:
        raise UserError("nobody answers")

    with pytest.raises(UserError, match="nobody answers"):
        await _unless_stopped(nobody, stop)
    assert await _unless_stopped(AsyncMock(return_value="a swarm"), stop) == "a swarm"
    stop.set()
    assert await _unless_stopped(trio.sleep_forever, stop) is None


async def test_the_port_of_the_last_run_is_taken_again_if_nobody_else_has_it() -> None:
    settings, seed = Settings(listen_host="127.0.0.1"), bytes(32)
    async with AsyncExitStack() as stack:
        first = await listening(stack, settings, seed, 0)
        port = first.listening[0].port
        other = await listening(stack, settings, seed, port)
        assert other.listening[0].port not in (0, port)
        with pytest.raises(PortInUse):
            await listening(stack, replace(settings, listen_port=port), seed, 0)
    async with AsyncExitStack() as stack:
        again = await listening(stack, settings, seed, port)
        assert again.listening[0].port == port


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
