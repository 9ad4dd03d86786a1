"""Who contributed, over real engines and seats: whoever has closed all steps counts all work, each
version once, over restarts."""

from pathlib import Path

from client.store.paths import Kept, home_folders
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from client.train.swarm.contributions import Contributions
from protocol.ids import PeerId
from protocol.verdicts import Verdict
from tests.support.train_swarm import Volunteer, open_swarm

STEPS = 12


def counts(volunteer: Volunteer) -> dict[PeerId, int]:
    return volunteer.engine.contributions.counts()


async def test_all_replicas_of_a_stage_count_alike_and_truly(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=STEPS) as swarm:
        *first, last = await swarm.staffed(0, 0, 0, 1)
        await swarm.until_done()
        own = {one.peer: one.counted(0) for one in first}
        truth = {name: count for name, count in own.items() if count}
        whole = STEPS * swarm.manifest.microbatches_per_step
        assert [counts(one) for one in first] == [truth] * 3
        assert [one.engine.contributions.own for one in first] == list(own.values())
        assert sum(truth.values()) == whole
        assert counts(last) == {last.peer: whole}, "of other stages it says nothing"


async def test_a_restart_goes_on_where_it_was_and_who_is_expelled_is_left_out(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path, steps=STEPS) as swarm:
        one, other, _ = await swarm.staffed(0, 0, 1)
        await swarm.until_done()
        path = home_folders(one.disk.parent).of(swarm.file.swarm, Kept.CONTRIBUTIONS)
        one.engine.contributions.save()
        again = Contributions(one.peer, one.engine.membership, path)
        assert again.counts() == counts(other)
        for committed in one.engine.commits:  # a roll-back after the restart
            again.closed(committed)
        assert again.counts() == counts(other)
        one.engine.membership.verdicts.add(Verdict(other.peer, "it lies", None, stage=0))
        assert again.counts().keys() == {one.peer}
    path.write_bytes(b"\x00" * 100)
    assert Persisted(path, KeptContributions).peek() is None
