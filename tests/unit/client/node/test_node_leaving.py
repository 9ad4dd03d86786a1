"""Leaving while the disk does not take a state that nobody else has."""

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import trio

from client.control.methods import Impossible
from client.errors import ExitCode
from client.node.node import Node


class Held(Mock):
    """Stages whose last version is lost if they are let go while the disk is full."""

    full, failure = True, None

    def not_to_be_saved(self) -> str:
        return "cannot save version 65 of stage 0, which nobody else has: full" if self.full else ""

    @property
    def lost(self) -> list[str]:
        lets_go = self.full and self.let_go.is_set()
        return ["version 65 of stage 0 could not be saved: full"] if lets_go else []


@pytest.fixture
def held() -> Held:
    return Held(let_go=trio.Event())


@pytest.fixture
def node(held: Held) -> Any:
    node: Any = Node.__new__(Node)
    node._training = Mock(held_stages=held, drain=AsyncMock())
    node._relaying, node._engine, node._pauses = Mock(leave=AsyncMock()), Mock(), Mock()
    node._network = Mock(disconnect=AsyncMock())
    node._network.statistics.return_value.peers = ("other",)
    node._stop_asked, node._refused = trio.Event(), None
    node._asked = node._discards = False
    return node


async def test_who_asks_is_refused_and_nothing_is_given_up(node: Any, held: Held) -> None:
    words = "cannot save version 65 .*with --discard leaves anyway"
    for ask in (node.finish, node.pause):
        with pytest.raises(Impossible, match=words):
            ask(discard=False)
    assert not held.let_go.is_set()
    assert not node._stop_asked.is_set()
    assert not node._pauses.pause.called
    held.full = False
    node.finish(discard=False)
    held.full = True  # it fills up while the node drains
    await node._leave()
    assert not held.let_go.is_set(), "it waits until there is room"
    assert node._failure() is None


async def test_who_agrees_to_the_loss_is_not_told_of_a_failure(node: Any, held: Held) -> None:
    node.finish(discard=True)
    await node._leave()
    assert held.let_go.is_set()
    assert node._failure() is None
    held.history.end.assert_called_once_with()
    node._training.drain.assert_awaited_once_with(for_good=True)
    node._relaying.leave.assert_awaited_once_with()
    node._engine.own_advert.change.assert_called_once_with(leaving=True)
    node._network.disconnect.assert_awaited_once_with("other", "this volunteer leaves")


@pytest.mark.parametrize("signal", [True, False])
async def test_a_signal_and_the_end_of_the_run_are_not_refused_but_fail(
    node: Any, held: Held, signal: bool
) -> None:
    if signal:
        held.full = False
        node.finish(discard=False)  # it waits for room when the signal comes
        held.full = True
        held.let_go.set()
    await node._leave()
    assert held.let_go.is_set()
    loss = node._failure()
    assert "version 65 of stage 0 could not be saved" in str(loss)
    assert loss.exit_code == ExitCode.RUNTIME
