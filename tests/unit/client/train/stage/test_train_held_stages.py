"""Several stages at one volunteer: nothing is lost, nothing counted twice, whoever holds what."""

from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from client.compute.memory import memory_need
from client.config import Settings
from client.errors import UserError
from client.store.checkpoints import CheckpointFolder
from client.train.stage.held_stages import HeldStages
from protocol.held_stage import machine
from protocol.view import SwarmView
from tests.support.cases import usual
from tests.support.protocol_examples import SWARM, manifest
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm


def has_work(volunteer: Volunteer, stage: int) -> bool:
    """Whether its seat has counted something that no round has taken yet."""
    driver = volunteer.held(stage).driver
    return driver is not None and bool(driver.seat.pipeline.done())


def replayed(swarm: TestSwarm) -> int:
    return sum(
        volunteer.held_stages.counting.seen.lost_microbatches for volunteer in swarm.volunteers
    )


async def dual_home(swarm: TestSwarm) -> tuple[Volunteer, Volunteer]:
    """The first holds stage 0, the other stage 1 and, a little later, stage 0 as well."""
    first, dual = await swarm.staffed(0, 1, steps=2)
    dual.assign(0)
    await swarm.until(lambda: dual.engine.own_bytes)
    return first, dual


def stages_of(folder: Path) -> HeldStages:
    """Without anything around them."""
    history = Mock(folder=CheckpointFolder(folder))
    engine = Mock(manifest=manifest(), swarm=SWARM, history=history)
    return HeldStages(engine, Settings(), folder)


def test_what_concerns_all_seats_reaches_those_that_are_open(tmp_path: Path) -> None:
    stages, held = stages_of(tmp_path), Mock()
    stages.held = {0: held, 1: cast(Any, Mock(driver=None))}
    held.driver.seat.quorum.aside = frozenset({"somebody"})
    assert stages.quorums() == [held.driver.seat.quorum]
    view, before = SwarmView(((),) * manifest().stage_count), stages.changed
    stages.save_now()
    assert not stages.sees
    stages.update_view(view)
    held.driver.save_now.assert_called_once_with()
    held.driver.update_view.assert_called_once_with(view)
    assert stages.view is view
    assert stages.sees
    assert before.is_set(), "an attempt to get a stage looks again"
    assert not stages.changed.is_set()


async def test_a_stage_that_does_not_come_back_is_not_said_to(tmp_path: Path) -> None:
    stages, said = stages_of(tmp_path), list[list[int]]()
    lost = Mock(stage=0, lost="", run=AsyncMock(side_effect=UserError("it does not fit any more")))
    stages.held = {0: lost, 1: Mock()}
    stages.engine.seats_changed = lambda: said.append(list(stages.held))
    await stages._hold(lost)
    assert said == [[1]]


async def test_the_status_shows_every_stage_and_worker(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, stages=3, steps=20) as swarm:
        await swarm.add(2)
        first, dual = await dual_home(swarm)
        await swarm.until(
            lambda: (
                dual.held_stages.workers.idle and dual.held_stages.counting.seen.rounds_committed
            )
        )
        now = dual.shown()
        assert now.state == "training"
        assert [seat.stage for seat in now.seats] == [1, 0]
        assert [worker.stage for worker in now.workers] == [1, 0, None]
        other = first.shown()
        shares = now.own_tokens_per_s + other.own_tokens_per_s
        assert shares == pytest.approx(2 / 3 * now.tokens_per_s, rel=0.2), "two of three stages"


async def test_giving_the_second_stage_up_loses_nothing(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=14) as swarm:
        _, dual = await dual_home(swarm)
        await swarm.until(lambda: has_work(dual, 0))
        step, before = dual.step(0), dual.counted(0)
        dual.unassign(0)
        await swarm.until(lambda: 0 not in dual.held_stages.held)
        assert dual.counted(0) > before, "what it had counted was in its step's round"
        await swarm.until_done()
        later = [c for c in dual.engine.commits if c.stage == 0 and c.version > step + 1]
        assert not any(c.counted for c in later), "it took no part in a later one"
        assert replayed(swarm) == 0
        swarm.assert_exact()


async def test_a_hand_over_that_takes_too_long_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "DRAIN_S", 0.0)
    async with open_swarm(tmp_path, steps=12) as swarm:
        first, second, dual = await swarm.add(0), await swarm.add(1), await swarm.add(0)
        dual.assign(1)
        await swarm.until(lambda: dual.serves(1) and has_work(dual, 1))
        dual.unassign(1)
        await swarm.until_done()
        assert replayed(swarm) > 0, "its stage had to count again what it took with it"
        assert second.step(1) == first.step(0) == 12
        swarm.assert_exact()


@pytest.mark.parametrize(("old", "new"), usual(1, [(0, 1), (1, 2), (1, 0)]))
async def test_a_move_while_training_loses_nothing(tmp_path: Path, old: int, new: int) -> None:
    async with open_swarm(tmp_path, stages=3, steps=14) as swarm:
        for stage in range(3):
            await swarm.add(stage)
        mover = await swarm.add(old)
        await swarm.until(lambda: mover.step(old) >= 1 and has_work(mover, old))
        mover.assign(new)
        await swarm.until(lambda: new in mover.engine.served)
        assert mover.serves(old), "make before break"
        mover.unassign(old)
        await swarm.until(lambda: list(mover.held_stages.held) == [new])
        await swarm.until(lambda: mover.counted(new))
        await swarm.until_done()
        assert mover.counted(old)
        assert replayed(swarm) == 0
        swarm.assert_exact()


async def test_a_second_stage_that_does_not_fit_is_refused(swarm: TestSwarm) -> None:
    room = int(memory_need(swarm.manifest, 1).total_bytes / 0.85) + 1
    small, first = await swarm.add(1, memory_bytes=room), await swarm.add(0)
    await swarm.until(lambda: small.step(1) >= 1)
    small.assign(0)
    await swarm.until(lambda: small.engine.given_up)
    assert "of memory" in small.engine.given_up[0]
    assert list(small.held_stages.held) == [1]
    await swarm.until_done()
    assert first.held_stages.failure is None
    swarm.assert_exact()


async def test_a_first_stage_that_does_not_fit_ends_the_node(swarm: TestSwarm) -> None:
    small = await swarm.add(memory_bytes=1000)
    small.assign(0)
    with pytest.raises(AssertionError, match="of memory"):
        await swarm.until(lambda: small.serves(0))
    assert small.engine.given_up == {}


async def test_unassigned_while_fetching_nothing_is_left(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=10) as swarm:
        _, dual = await swarm.staffed(0, 1, steps=1)
        dual.assign(0)
        await swarm.until(lambda: dual.step(0) >= 0)
        assert not dual.serves(0)
        dual.unassign(0)
        await swarm.until(lambda: 0 not in dual.held_stages.held)
        assert [seat.stage for seat in dual.held_stages.seats()] == [1]
        await swarm.until_done()
        swarm.assert_exact()
