"""Leaving while the disk does not take a state that nobody else has."""

from typing import cast

import pytest
import trio

from client.control.methods import Impossible
from client.errors import ExitCode
from client.node.leaving import Leaving
from client.train.stage.held_stages import HeldStages


class Held:
    """Stages whose last version is lost if they are let go while the disk is full."""

    def __init__(self) -> None:
        self.full = True
        self.let_go = trio.Event()

    def not_to_be_saved(self) -> str:
        return "cannot save version 65 of stage 0, which nobody else has: full" if self.full else ""

    @property
    def lost(self) -> list[str]:
        return (
            ["version 65 of stage 0 could not be saved: full"]
            if self.full and self.let_go.is_set()
            else []
        )


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def leaving(held: Held) -> Leaving:
    return Leaving(lambda: cast(HeldStages, held))


def test_who_asks_is_refused_and_nothing_is_given_up(leaving: Leaving, held: Held) -> None:
    words = "cannot save version 65 .*with --discard leaves anyway"
    for ask in (leaving.ask, leaving.ask_pause):
        with pytest.raises(Impossible, match=words):
            ask(discard=False)
    assert not held.let_go.is_set()
    held.full = False
    leaving.ask(discard=False)
    held.full = True  # it fills up while the node drains
    leaving.begin()
    assert not held.let_go.is_set(), "it waits until there is room"
    assert leaving.loss() is None


def test_who_agrees_to_the_loss_is_not_told_of_a_failure(leaving: Leaving, held: Held) -> None:
    leaving.ask(discard=True)
    leaving.begin()
    assert held.let_go.is_set()
    assert leaving.loss() is None


@pytest.mark.parametrize("signal", [True, False])
def test_a_signal_and_the_end_of_the_run_are_not_refused_but_fail(
    leaving: Leaving, held: Held, signal: bool
) -> None:
    if signal:
        held.full = False
        leaving.ask(discard=False)  # it waits for room when the signal comes
        held.full = True
        held.let_go.set()
    leaving.begin()
    assert held.let_go.is_set()
    loss = leaving.loss()
    assert "version 65 of stage 0 could not be saved" in str(loss)
    assert loss.exit_code == ExitCode.RUNTIME
