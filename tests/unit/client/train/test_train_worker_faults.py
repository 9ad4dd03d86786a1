"""A compute worker dies or runs out of memory: the seat serves again, with a sibling's state."""

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import trio

from client.errors import ExitCode
from tests.support.train_swarm import Volunteer, open_swarm


def replica_of(volunteer: Volunteer, stage: int) -> Any:
    """The state in the worker that computes a stage."""
    worker: Any = volunteer.held(stage).worker
    return worker._executor._opened.replica


async def test_a_worker_that_dies_is_replaced_and_a_sibling_gives_the_state(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=16) as swarm:
        first, second, _ = await swarm.staffed(0, 0, 1, steps=2)
        worker, served = second.held(0).worker, first.engine.shelf.served_bytes
        next(w for w in second.workers if w is worker).die()
        await swarm.until(lambda: second.held(0).worker_restarts == 1)
        await swarm.until(lambda: second.serves(0))
        assert second.held(0).worker is not worker
        assert first.engine.shelf.served_bytes - served >= 8 * replica_of(first, 0).size  # muon
        assert second.lineage.version == 0, "nothing was rolled back"
        at = second.step(0)
        assert at >= 2
        await swarm.until_done()
        swarm.assert_exact()
        assert {c.version for c in second.engine.commits} >= set(range(at + 1, 17))
        assert torch.equal(replica_of(first, 0).flat.values, replica_of(second, 0).flat.values)


@pytest.mark.slow
async def test_a_worker_that_hangs_counts_as_dead_and_the_others_go_on(tmp_path: Path) -> None:
    """They do not wait for it, and its seat may be lost before the node has noticed."""
    async with open_swarm(tmp_path, steps=60) as swarm:
        _, second, last = await swarm.staffed(0, 0, 1, steps=2)
        at, worker = last.step(1), second.held(0).worker
        next(w for w in second.workers if w is worker).hang()
        await swarm.until(lambda: last.step(1) > at + 5)
        await swarm.until(lambda: second.held(0).worker_restarts == 1)
        await swarm.until(lambda: second.serves(0))
        assert second.held(0).worker is not worker
        await swarm.until_done()
        swarm.assert_exact()


async def test_a_worker_short_of_memory_goes_on_in_slices(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=8) as swarm:
        _, second, last = await swarm.staffed(0, 0, 1, steps=2)
        for volunteer, stage in ((second, 0), (last, 1)):
            module = replica_of(volunteer, stage).module  # both passes run it
            hidden = module.hidden

            def run(x: torch.Tensor, *beside: object, hidden: Any = hidden) -> Any:
                if len(x) > 1:
                    raise MemoryError
                return hidden(x, *beside)

            module.hidden = run
        await swarm.until_done()
        swarm.assert_exact()
        assert replica_of(last, 1).sequences_at_once == 1
        assert last.held(1).worker_restarts == 0


async def test_a_seat_that_never_fits_is_given_up_in_words(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=50) as swarm:
        first, second, _ = await swarm.staffed(0, 0, 1, steps=2)

        def run(x: torch.Tensor, *beside: object) -> NoReturn:
            raise MemoryError("out of it")

        replica_of(second, 0).module.hidden = run
        with trio.fail_after(300):
            while second.held_stages.failure is None:
                await trio.sleep(0.05)
        failure, second.held_stages.failure = second.held_stages.failure, None
        assert "not even one sequence" in failure.message
        assert "--device cpu" in failure.next_step
        assert failure.exit_code == ExitCode.CONFIG
        assert not second.held_stages.held
        at = first.step(0)
        await swarm.until(lambda: first.step(0) > at + 1)
