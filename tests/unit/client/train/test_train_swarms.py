"""Swarms of real engines, seats and executors in a situation each: every step stays exact.

``assert_exact`` holds I1, I2 and I5, and every loss against one process (I3, I4): only the order of
sums differs, within 1e-5 of a loss for 20 steps and 1e-3 later.
"""

from pathlib import Path

import msgspec
import pytest

from client.compute import replica
from client.compute.executor import Executor
from protocol import limits
from protocol.effects import Send
from protocol.ids import PeerId
from protocol.membership import roster
from protocol.pipeline.effects import HashTask
from protocol.wire.messages import Message, Ready
from protocol.wire.parts import Decree
from tests.support.cases import usual
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

# --- several devices --------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1])
async def test_several_cards_are_one_seat_and_their_death_loses_nothing(
    stage: int, tmp_path: Path
) -> None:
    async with open_swarm(tmp_path, steps=12, microbatches=12) as swarm:
        for place in (0, 1, 1 - stage):
            await swarm.add(place)
        several = await swarm.add(stage, device="cpu:0,cpu:1,cpu:2")
        await swarm.until(lambda: several.step(stage) >= 2 and several.serves(stage))
        cards = several.held(stage).worker._executor._cards
        await swarm.until(lambda: all(card.replica.counted for card in cards.all))
        several.held(stage).worker.die()
        await swarm.until(lambda: several.held_stages.counters.worker_restarts == 1)
        await swarm.until_done()
        swarm.assert_exact()


# --- a replica that its neighbours have cut off -----------------------------------------------


async def test_a_replica_without_its_neighbours_names_no_electors_of_its_own(tmp_path) -> None:
    """It leads half of the steps, and sees its sibling alone: the sibling sees the others, too."""
    async with open_swarm(tmp_path, steps=60) as swarm:
        first, second, sibling = [await swarm.add(stage) for stage in (0, 0, 1)]
        cut_off = await swarm.add(1)
        await swarm.until(lambda: cut_off.serves(1) and sibling.serves(1) and second.serves(0))
        quorum = sibling.held(1).driver.seat.quorum
        before = {first.peer, second.peer}
        await swarm.until(lambda: sibling.step(1) >= 4 and len(quorum.electors) == 4)
        swarm.hub.partition([cut_off.peer], sorted(before))
        step = sibling.step(1)

        def goes_on() -> bool:
            assert before <= quorum.electors, "who is cut off has named others"
            return sibling.step(1) >= step + 8 and first.step(0) >= step + 8

        await swarm.until(goes_on)
        assert not any(one.engine.internal_errors for one in swarm.volunteers)


# --- stages too large for a hash to come with its version -------------------------------------


async def test_steps_are_exact_and_a_newcomer_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    execute = Executor.execute

    def note(self: Executor, request: object, *others: object) -> None:
        if isinstance(request, HashTask):
            asked.append(request.step)
        execute(self, request, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(replica, "LEAF_BYTES", 0)
    monkeypatch.setattr(Executor, "execute", note)
    async with open_swarm(tmp_path, steps=6) as swarm:
        for stage in (0, 0, 1):
            await swarm.add(stage)
        late = await swarm.add(1)
        await swarm.until_done()
        await swarm.until(lambda: late.serves(1))
        swarm.assert_exact()
    assert set(asked) == set(range(1, 7))


# --- nobody is linked with everybody, as in swarms of more than 64 ----------------------------


@pytest.fixture
def near_links_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "FULL_MESH_UP_TO", 1)
    monkeypatch.setattr(roster, "HASH_NEIGHBOURS", 0)
    monkeypatch.setattr(roster, "FAR_NEIGHBOURS", 0)
    monkeypatch.setattr(limits, "MAX_ELECTORS", 1)  # those of a first step are linked with all


async def add_to_the_chain(swarm: TestSwarm, stage: int) -> Volunteer:
    """A volunteer that knows only the one before it when it comes."""
    everybody = list(swarm.volunteers)
    swarm.volunteers, swarm.dead = everybody[-1:], everybody[:-1]
    volunteer = await swarm.add(stage)
    swarm.volunteers, swarm.dead = [*everybody, volunteer], []
    return volunteer


@pytest.mark.usefixtures("near_links_only")
async def test_a_stage_we_have_no_link_with_is_not_empty_and_not_lost(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=3, stages=5) as swarm:
        for stage in range(5):
            await add_to_the_chain(swarm, stage)
        await swarm.until(lambda: all(v.step(n) == 3 for n, v in enumerate(swarm.volunteers)))
        (lineage,) = {v.lineage for v in swarm.volunteers}
        assert lineage.number == 0, "nothing was rolled back"
        ends = swarm.volunteers[0], swarm.volunteers[-1]
        one = next(v for v in ends if v.peer not in lineage.electors)
        unseen = one.held_stages.view.unseen
        assert unseen  # it is linked with its neighbour and with the elector
        assert all(one.held_stages.view.serving(stage) == () for stage in unseen)


# --- a replica of the last stage lies about its loss ------------------------------------------


def lie_about_losses(liar: Volunteer, lie: float) -> None:
    """Have a volunteer say ``lie`` for every sum of losses that others are sent, and in every
    decree that it proposes."""

    def of_sums(to: PeerId, message: Message, payload: bytes) -> tuple[Message, bytes]:
        if isinstance(message, Ready) and to != liar.peer:
            message = msgspec.structs.replace(message, loss_sum=lie)
        return message, payload

    liar.distort(of_sums)
    driver = liar.held(1).driver
    proposer = driver.seat.leader.proposer
    propose = proposer.propose

    def lying(decree: Decree, now: float) -> list[Send]:
        return propose(msgspec.structs.replace(decree, loss_sum=lie), now)

    proposer.propose = lying  # type: ignore[method-assign]


@pytest.mark.parametrize(("lie", "replicas"), usual(2, [(0.0, 2), (5e26, 3), (0.0, 3), (5e26, 2)]))
async def test_one_liar_changes_nothing_of_what_the_honest_are_shown(
    tmp_path: Path, lie: float, replicas: int
) -> None:
    async with open_swarm(tmp_path, steps=8, microbatches=12) as swarm:
        first = await swarm.add(0)
        honest = [await swarm.add(1) for _ in range(replicas - 1)]
        liar = await swarm.add(1)
        await swarm.until(lambda: liar.serves(1))
        lie_about_losses(liar, lie)
        await swarm.until_done()
        for volunteer in [first, *honest]:
            assert volunteer.losses
            shown = volunteer.losses.values()  # half of what it is agrees, where half is left out
            assert all(2.5 < loss < 7.0 for loss in shown), shown
