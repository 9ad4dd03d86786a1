"""Who contributed, over real engines and seats: whoever has closed all steps counts all work, each
version once, over restarts."""

from __future__ import annotations

from pathlib import Path

from client.store.persisted import Persisted
from client.store.records import KeptContributions
from client.train.swarm.contributions import Contributions
from protocol.ids import PeerId
from protocol.verdicts import Verdict
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

STEPS = 12


def peer(volunteer: Volunteer) -> PeerId:
    return volunteer.engine.signer.peer


def counts(volunteer: Volunteer) -> dict[PeerId, int]:
    return volunteer.engine.contributions.counts()


async def done_by(swarm: TestSwarm, *stages: int) -> None:
    """Run to the end; start when all serve: a step may not be over before the last one has loaded
    its stage."""
    volunteers = [await swarm.add(stage) for stage in stages]
    pairs = list(zip(volunteers, stages, strict=True))
    await swarm.until(lambda: all(one.serves(stage) for one, stage in pairs))
    swarm.start()
    await swarm.until_done()


async def test_all_replicas_of_a_stage_count_alike_and_truly(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=STEPS) as swarm:
        await done_by(swarm, 0, 0, 0, 1)
        *first, last = swarm.volunteers
        own = {peer(one): sum(c.counted for c in one.engine.commits) for one in first}
        truth = {name: count for name, count in own.items() if count}
        whole = STEPS * swarm.manifest.microbatches_per_step
        assert [counts(one) for one in first] == [truth] * 3
        assert [one.engine.contributions.own for one in first] == list(own.values())
        assert sum(truth.values()) == whole
        assert counts(last) == {peer(last): whole}, "of other stages it says nothing"


async def test_a_restart_goes_on_where_it_was_and_who_is_expelled_is_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kept"
    async with open_swarm(tmp_path, steps=STEPS) as swarm:
        await done_by(swarm, 0, 0, 1)
        one, other = swarm.volunteers[:2]
        one.engine.contributions.keep_in(path)
        for committed in one.engine.commits:
            one.engine.contributions.closed(committed)
        one.engine.contributions.save()
        again = Contributions(peer(one), one.engine.membership)
        again.keep_in(path)
        assert again.counts() == counts(other)
        for committed in one.engine.commits:  # a roll-back after the restart
            again.closed(committed)
        assert again.counts() == counts(other)
        one.engine.membership.verdicts.add(Verdict(peer(other), "it lies", None, stage=0))
        assert again.counts().keys() == {peer(one)}
    path.write_bytes(b"\x00" * 100)
    assert Persisted(path, KeptContributions).peek() is None
