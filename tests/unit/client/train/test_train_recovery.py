"""Volunteers vanish: the successor, its state, and the course of the run."""

from pathlib import Path

import pytest

from client.store.persisted import SET_ASIDE, Persisted
from client.store.records import EVIDENCE, LINEAGE
from client.train.ports import StageHolder
from protocol.recovery.evidence import Evidence, Kept
from protocol.recovery.stored import Lineage, begun
from protocol.wire.fields import MAX_NUMBER
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm


async def dual_home(swarm: TestSwarm) -> tuple[Volunteer, Volunteer, Volunteer]:
    """One volunteer for each stage, and one that holds both and is as far as they are."""
    first, second, dual = await swarm.add(0), await swarm.add(1), await swarm.add(0)
    dual.assign(1)
    await swarm.until(lambda: dual.serves(0) and dual.serves(1) and dual.step(1) >= 3)
    return first, second, dual


@pytest.mark.parametrize("stage", [0, 1])
async def test_who_also_holds_the_stage_takes_over_at_once(tmp_path: Path, stage: int) -> None:
    async with open_swarm(tmp_path, steps=20) as swarm:
        *homes, dual = await dual_home(swarm)
        before = dual.step(stage)
        seat = dual.held(stage).driver
        swarm.vanish(homes[stage])
        await swarm.until_done()
        assert before < 20, "it died while there was something to do"
        assert dual.held(stage).driver is seat, "its copy was current: nothing was loaded"
        assert dual.lineage.number == 0, "nothing was rolled back"
        swarm.assert_exact()


@pytest.mark.slow
async def test_a_split_that_lasts_heals(tmp_path: Path) -> None:
    """Both sides hold the other for dead long before they can reach each other again."""
    async with open_swarm(tmp_path, steps=60) as swarm:
        first, *rest, cut = await swarm.staffed(0, 0, 1, 0, steps=2)
        alone = cut.peer
        swarm.hub.partition([alone], [v.peer for v in (first, *rest)])
        await swarm.until(lambda: first.engine.membership.roster.member(alone) is None)
        step = first.step(0)
        await swarm.until(lambda: first.step(0) >= step + 3)
        swarm.hub.heal()
        await swarm.until(lambda: first.engine.membership.roster.member(alone) is not None)
        await swarm.until_done()
        swarm.assert_exact()


async def test_who_could_go_on_without_us_is_on_disk(tmp_path: Path) -> None:
    """A member that comes back alone can tell whether the others may have continued without it."""
    async with open_swarm(tmp_path, steps=24, checkpoint_every=4) as swarm:
        first, second, dual = await dual_home(swarm)
        swarm.vanish(second)
        await swarm.until(lambda: list(dual.disk.glob("*-v24.*")))
        swarm.vanish(dual)
        seen = Persisted(dual.disk / EVIDENCE, Kept).read()
        assert seen is not None
        assert seen == dual.engine.history.machine.evidence.kept()  # type: ignore[union-attr]
        there = {v.peer for v in (first, dual)}
        assert frozenset.union(*Evidence(seen, seen.me).last_electors) == there


async def test_a_swarm_that_was_shut_down_says_what_it_waits_for_and_how_long(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path, steps=24, checkpoint_every=4) as swarm:
        first, second = await swarm.staffed(0, 1)
        await swarm.until(lambda: list(first.disk.glob("stage-0-v12.*")))
        for gone in (first, second):
            swarm.vanish(gone)
        back = await swarm.add(copies=first.disk)
        history = back.engine.history
        await swarm.until(lambda: "version 0 is the newest that every stage" in history.waiting())
        assert history.waiting().startswith(("up to 120 s for", "up to 119 s for"))
        assert "who may have version 12" in history.waiting()
        other = await swarm.add(copies=second.disk)
        await swarm.until(lambda: history.machine.open)
        assert history.waiting() == ""
        assert back.lineage.version >= 8
        assert history.version() == back.lineage.version
        await swarm.until(lambda: other.lineage == back.lineage)  # each a stranger to the other


async def test_a_lineage_on_disk_that_cannot_be_ends_nobody(tmp_path: Path) -> None:
    """Its era is the last that there is: the next roll-back could not be said. It used to be kept,
    and the volunteer died at every start."""
    bricked = tmp_path / "bricked"
    last = begun(MAX_NUMBER, 0, (), ("x",), b"")
    Persisted(bricked / LINEAGE, Lineage).save(last)
    async with open_swarm(tmp_path, steps=20, checkpoint_every=8) as swarm:
        first, second = await swarm.add(0, copies=bricked), await swarm.add(1, copies=bricked)
        await swarm.until(lambda: 2 <= first.step(0) < 7)
        assert (first.disk / f"lineage.bin{SET_ASIDE}").exists()
        swarm.vanish(second)
        spare = await swarm.add(1)
        await swarm.until_done()
        assert first.lineage.number == 1, "it could roll back"
        swarm.assert_losses()
        assert first.lineage == spare.lineage


async def test_a_lineage_that_was_begun_names_those_who_were_there(tmp_path: Path) -> None:
    """They are the electors of its first step, also for the next process of one of them."""
    async with open_swarm(tmp_path, steps=4) as swarm:
        members = first, second, third = [await swarm.add(stage) for stage in (0, 0, None)]
        await swarm.until(lambda: all(one.lineage.electors for one in members))
        assert len({one.lineage for one in members}) == 1
        assert {*first.lineage.electors} == {one.peer for one in members}
        await swarm.until(lambda: first.serves(0) and second.serves(0))
        swarm.vanish(first)
        back = await swarm.add(0, copies=first.disk)
        await swarm.until(lambda: back.serves(0))
        driver = back.held(0).driver
        assert driver.seat.quorum.electors == {*third.lineage.electors}
        third.assign(1)
        await swarm.until_done()
        swarm.assert_exact()


async def test_what_we_have_seen_is_on_disk_as_soon_as_a_lineage_is_adopted(tmp_path: Path) -> None:
    """After a crash, a version of the lineage that was given up would count as seen."""
    async with open_swarm(tmp_path, steps=20) as swarm:
        first, _ = await swarm.add(0), await swarm.add(1)
        await swarm.until(lambda: first.step(0) >= 3)
        first.life.cancel()
        history = first.engine.history
        assert history is not None
        first.engine.held_stages = StageHolder(2)
        file = Persisted(first.disk / EVIDENCE, Kept)
        file.save(Kept())
        history._adopt(history.lineage, None)
        assert file.read() == history.machine.evidence.kept() != Kept()
