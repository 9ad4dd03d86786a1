"""Volunteers vanish, meet again or begin with a chain: their state, and the course of the run."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio

from client.control.snapshot import LineView
from client.events import LineGivenUp
from client.store import checkpoints, paths
from client.store.persisted import SET_ASIDE, Persisted
from client.store.records import EVIDENCE, LINEAGE, KeptChain
from client.train.ports import StageHolder
from protocol.effects import Publish
from protocol.pace import FORGET_S
from protocol.pipeline.effects import Committed
from protocol.recovery.evidence import Evidence, Kept
from protocol.recovery.stored import STORED, Copy, Lineage, Stored, begun
from protocol.wire.fields import MAX_NUMBER
from protocol.wire.parts import SeatStatus
from tests.support.protocol_examples import peer
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


async def test_what_we_have_seen_is_on_disk_as_soon_as_a_lineage_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, a version of the lineage that was given up would count as seen. A full disk is
    not told: that would be from the writer's thread."""
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
        monkeypatch.setattr(Persisted, "save", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        history._saved = Lineage(nonce=b"other")
        await history._say_copies()
        assert history._saved != history.lineage, "it is tried again"
        assert "cannot be written" not in str(first.events)
        first.engine.held_stages = held = Mock()
        history._adopt(history.lineage, None)
        assert "the new lineage cannot be written to" in str(first.events)
        held.begin_anew.assert_called_once_with(history.lineage, None)


# --- two that trained apart meet: one fetches the other's state first -------------------------

STEPS, TOGETHER, EVERY = 14, 6, 5
CHOICES = {"stages": 1, "steps": STEPS, "checkpoint_every": EVERY, "microbatches": 2}


async def train_apart(swarm: TestSwarm) -> tuple[Volunteer, Volunteer]:
    """Let two train together, then each by itself to the end of the run; then they may meet."""
    founder, other = await swarm.add(0, founder=True), await swarm.add(0)
    await swarm.until(lambda: other.step(0) >= TOGETHER)
    peers = founder.peer, other.peer
    founder.engine.membership.contacts.left(peers[1])
    swarm.vanish(other)
    swarm.hub.kill(peers[1])
    await swarm.until(lambda: founder.step(0) == STEPS)
    swarm.hub.partition(peers[:1], peers[1:])
    swarm.volunteers = []
    back = await swarm.add(0)  # the same member, with its disk
    await swarm.until(lambda: back.step(0) == STEPS)
    swarm.volunteers = [founder, back]
    swarm.hub.heal()
    return founder, back


def given_up(volunteer: Volunteer) -> list[LineGivenUp]:
    return [event for event in volunteer.events if isinstance(event, LineGivenUp)]


async def test_a_step_of_a_line_that_was_left_proves_nobody(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, **CHOICES) as swarm:
        history = (await swarm.add(0)).engine.history
        ours, work = history.lineage.era, {"with_whom": frozenset({peer(5)})}
        for era in (ours + 1, ours):
            history.closed(Committed(0, 1, "ab" * 32, None, 0.0, 1, 1, era=era, **work))
            assert history.proves(peer(5)) is (era == ours)


async def test_the_founders_line_is_left_and_the_other_stays_on_the_disk(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, **CHOICES) as swarm:
        founder, back = await train_apart(swarm)
        assert founder.lineage != back.lineage
        await swarm.until(lambda: given_up(back) and back.serves(0))
        assert founder.lineage == back.lineage
        assert not given_up(founder)
        (event,) = given_up(back)
        assert (event.version, event.reached) == (STEPS, STEPS)
        assert STEPS - TOGETHER <= event.steps <= STEPS - EVERY
        assert event.members == (founder.peer,)
        told = back.shown().given_up
        assert told.words == event.words
        ending = checkpoints.SET_ASIDE
        aside = {path.name.removesuffix(ending) for path in back.disk.glob(f"*{ending}")}
        assert f"stage-0-v{STEPS}.safetensors" in aside, "our last state is kept"
        name = f"stage-0-v{STEPS}.safetensors"
        found = [(volunteer.disk / name).read_bytes() for volunteer in (founder, back)]
        assert found[0] == found[1], "the state that was fetched lies on the disk"
        offered = [item.version for _, item in back.engine.shelf._states()]
        assert offered == [STEPS], "none of ours, whose versions would be taken for theirs"


async def test_a_line_whose_state_is_not_to_be_had_takes_nobody_along(tmp_path: Path) -> None:
    """It is named, and others serve it; but what is given is another state, or nothing."""
    async with open_swarm(tmp_path, **CHOICES) as swarm:
        founder, back = await train_apart(swarm)
        founder.engine.shelf.withdraw_above(0)
        fetching = back.engine.history
        await swarm.until(lambda: fetching.machine.lines.failures)
        assert not given_up(back)
        assert back.serves(0)
        assert list(back.disk.glob(f"*{checkpoints.SET_ASIDE}")) == []
        assert list(back.disk.glob(".*.line.tmp")) == [], "what is of no use takes no room"
        for told, other in ((founder, back), (back, founder)):
            beside = told.shown().beside
            assert beside == [LineView(members=[other.peer], version=STEPS)]


async def test_a_full_disk_names_no_state_as_one_of_the_line_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_swarm(tmp_path, **CHOICES) as swarm:
        _, back = await train_apart(swarm)
        tried = list[Lineage]()

        def save_once_full(file: Persisted[object], record: object) -> None:
            if isinstance(record, Lineage):
                tried.append(record)
                if len(tried) == 1:
                    raise OSError(errno.ENOSPC, "No space left on device")
            save(file, record)

        save = Persisted.save
        monkeypatch.setattr(Persisted, "save", save_once_full)
        await swarm.until(lambda: given_up(back))
        ours = back.engine.history
        assert ours._fetched, "no copy of it was put among our checkpoints"
        await swarm.until(lambda: len(tried) > 1)
        await swarm.until(lambda: Persisted(back.disk / LINEAGE, Lineage).peek() == ours.lineage)


# --- a newcomer begins with what the chain says -----------------------------------------------

CERTIFIED_EVERY, LAST = 20, 40
FALSE = begun(1, 20, (b"a" * 32, b"b" * 32), (peer(99),), b"")
"""Another run, one roll-back later."""
INVENTED = 6


def certified(volunteer: Volunteer) -> int:
    newest = volunteer.engine.waypoints.machine.newest
    return newest.version if newest is not None else 0


async def a_pair(swarm: TestSwarm) -> list[Volunteer]:
    return [await swarm.add(0, founder=True), await swarm.add(1)]


async def invent(swarm: TestSwarm, number: int) -> Volunteer:
    """One more identity that says it serves the other run, and has copies of it."""
    one = await swarm.add()
    stage = number % 2
    seat = SeatStatus(stage, LAST, "serving", 0, 1.0, era=FALSE.era)
    one.held_stages.seats = lambda: [seat]  # type: ignore[method-assign]
    copies = tuple(Copy(s, FALSE.version, digest) for s, digest in enumerate(FALSE.hashes))
    me = one.peer
    await swarm.until(lambda: one.engine.membership.records.get(STORED, me) is not None)
    one.engine.history = None  # it would say again what is true
    one.engine.perform(Publish(STORED, Stored(FALSE, copies)))
    one.engine.seats_changed()
    return one


async def beside_an_invented_majority(swarm: TestSwarm) -> tuple[list[Volunteer], Volunteer]:
    """The run is over, so that nothing but the newcomer's beliefs change."""
    honest = await a_pair(swarm)
    await swarm.until_done()
    assert {certified(v) for v in honest} == {LAST}
    invented = [await invent(swarm, number) for number in range(INVENTED)]
    await swarm.until(lambda: all(len(v.engine.handshake.admitted) > INVENTED for v in honest))
    late = await swarm.add(1)
    for one in invented:
        one.engine.seats_changed()
    return honest, late


async def test_a_newcomer_is_not_shown_another_run_by_an_invented_majority(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=LAST, checkpoint_every=CERTIFIED_EVERY) as swarm:
        honest, late = await beside_an_invented_majority(swarm)
        await swarm.until(lambda: late.serves(1))
        await trio.sleep(3 * FORGET_S)
        assert len({v.lineage.era for v in (*honest, late)} - {FALSE.era}) == 1
        assert late.step(1) == LAST
        newest = honest[1].engine.waypoints.machine.newest
        assert newest is not None
        assert late.engine.waypoints.machine.newest == newest
        made = next(c.hash for c in honest[1].engine.commits if c.version == LAST)
        assert newest.hashes[1].hex() == made
        now = late.shown()
        assert (now.certified_version, now.certified_links) == (LAST, 2)
        for one in [*honest, late]:
            assert one.engine.internal_errors == 0


async def test_the_chain_is_on_disk_for_the_next_process(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=2000, checkpoint_every=CERTIFIED_EVERY) as swarm:
        honest = await a_pair(swarm)
        home = honest[0].disk.parent
        file = paths.home_folders(home).of(swarm.file.swarm, paths.Kept.WAYPOINTS)
        await swarm.until(lambda: certified(honest[0]) >= 2 * CERTIFIED_EVERY)
        chain = Persisted(file, KeptChain).read()
        assert chain.links == honest[0].engine.waypoints.machine.chain
        again = await swarm.add(home=home)
        assert certified(again) >= 2 * CERTIFIED_EVERY
        proves = again.engine.history.machine.evidence.proves
        assert all(proves(volunteer.peer) for volunteer in honest)

        file.write_bytes(file.read_bytes()[:-7])
        damaged = await swarm.add(home=home)
        assert certified(damaged) == 0
