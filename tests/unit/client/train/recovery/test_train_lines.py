"""Two that trained apart meet: one fetches the other's state before it gives up its own steps."""

import errno
from pathlib import Path

import pytest

from client.control.snapshot import LineView
from client.events import LineGivenUp
from client.store.checkpoints import SET_ASIDE
from client.store.persisted import Persisted
from client.store.records import LINEAGE
from protocol.pipeline.effects import Committed
from protocol.recovery.stored import Lineage
from tests.support.protocol_examples import peer
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

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
    return [event for event in volunteer.events() if isinstance(event, LineGivenUp)]


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
        aside = {path.name.removesuffix(SET_ASIDE) for path in back.disk.glob(f"*{SET_ASIDE}")}
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
        assert list(back.disk.glob(f"*{SET_ASIDE}")) == []
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
