"""The background's bytes while tensors wait: no clock, no sockets."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from client.net.pacing import BACKGROUND_CREDIT_BYTES, BACKGROUND_WAIT_S, Yielding

PIECE = 64 * 1024


class _Background:
    """Sends as much as it may."""

    def __init__(self, budget: Yielding, nursery: trio.Nursery, piece: int = PIECE) -> None:
        self.sent_bytes, self._budget, self._piece = 0, budget, piece
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        while self.sent_bytes < 100 * self._piece:
            await self._budget.wait(self._piece)
            self.sent_bytes += self._piece
            await trio.lowlevel.checkpoint()


async def test_alone_it_has_the_whole_line(nursery: trio.Nursery) -> None:
    background = _Background(Yielding(), nursery)
    await wait_all_tasks_blocked()
    assert background.sent_bytes == 100 * PIECE


@pytest.mark.parametrize("piece", [PIECE, 8 * PIECE])
async def test_beside_tensors_it_has_a_quarter(nursery: trio.Nursery, piece: int) -> None:
    budget = Yielding()
    with budget.tensors_wait():
        background = _Background(budget, nursery, piece)
        await wait_all_tasks_blocked()
        assert background.sent_bytes == 0
        for pieces in range(1, 241):
            budget.sent(PIECE)
            await wait_all_tasks_blocked()
            assert abs(background.sent_bytes - pieces * PIECE / 3) <= piece


async def test_it_goes_on_when_the_last_tensor_is_written(nursery: trio.Nursery) -> None:
    budget = Yielding()
    with budget.tensors_wait(), budget.tensors_wait():
        background = _Background(budget, nursery)
        await wait_all_tasks_blocked()
    assert background.sent_bytes == 0
    await wait_all_tasks_blocked()
    assert background.sent_bytes == 100 * PIECE


async def test_two_that_wait_share_the_quarter(nursery: trio.Nursery) -> None:
    budget = Yielding()
    with budget.tensors_wait():
        both = [_Background(budget, nursery) for _ in range(2)]
        for _ in range(240):
            budget.sent(PIECE)
            await wait_all_tasks_blocked()
        together = sum(one.sent_bytes for one in both)
        assert abs(together - 80 * PIECE) <= 2 * PIECE
        # Whose turn it is, is drawn: fewer than a quarter of 80 does not happen.
        assert all(one.sent_bytes >= 20 * PIECE for one in both)


async def test_a_share_that_nobody_used_is_not_saved_up(nursery: trio.Nursery) -> None:
    budget = Yielding()
    with budget.tensors_wait():
        for _ in range(1000):
            budget.sent(PIECE)
        background = _Background(budget, nursery)
        await wait_all_tasks_blocked()
        assert background.sent_bytes <= BACKGROUND_CREDIT_BYTES


async def test_a_tensor_that_nobody_takes_does_not_stop_it(autojump_clock: MockClock) -> None:
    budget = Yielding()
    with budget.tensors_wait():
        for _ in range(10):
            await budget.wait(PIECE)
    assert trio.current_time() <= 10 * BACKGROUND_WAIT_S + 1e-6


@pytest.mark.parametrize("piece", [PIECE, 8 * PIECE])
async def test_what_it_took_then_is_not_owed_for_ever(
    autojump_clock: MockClock, piece: int
) -> None:
    budget = Yielding()
    with budget.tensors_wait():
        for _ in range(1000):  # beside a peer that stops for a quarter of an hour
            await budget.wait(piece)
        for _ in range(3 * max(piece, BACKGROUND_CREDIT_BYTES) // PIECE + 1):
            budget.sent(PIECE)
        before = trio.current_time()
        await budget.wait(PIECE)
        assert trio.current_time() == before
