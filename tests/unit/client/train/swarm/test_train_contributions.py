"""Who contributed: each version once, over restarts; and over real engines and seats, whoever has
closed all steps counts all work."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client.train.swarm import contributions
from client.train.swarm.contributions import Contributions
from protocol.ids import PeerId
from protocol.pipeline.effects import Committed
from tests.support.protocol_examples import peer
from tests.support.train_swarm import open_swarm

STEPS = 12
ME, OTHER, IDLE = peer(1), peer(2), peer(3)


def closed(version: int, *shares: int, stage: int = 0) -> Committed:
    roll = (ME, OTHER, IDLE)
    return Committed(stage, version, "", None, 0.0, shares[0], 1, roll=roll, shares=shares)


class Members:
    """A membership, whose members go by these names."""

    def __init__(self) -> None:
        self.roster, self.verdicts = self, set[PeerId]()
        self.named: dict[PeerId, str] = {}

    def members(self) -> list[Any]:
        named = self.named.items()
        return [SimpleNamespace(peer=p, advert=SimpleNamespace(nickname=n)) for p, n in named]


def test_a_version_counts_once_over_restarts_and_who_is_expelled_is_left_out(
    tmp_path: Path,
) -> None:
    path, members = tmp_path / "contributions.bin", Members()
    one = Contributions(ME, members, path)  # type: ignore[arg-type]
    for step in (closed(1, 3, 1, 0), closed(2, 2, 2, 0), closed(1, 4, 0, 0, stage=1)):
        one.closed(step)
    members.named = {ME: "Ada"}
    one.tick(100.0)
    one.save()
    again = Contributions(ME, members, path)  # type: ignore[arg-type]
    for step in (closed(1, 9, 9, 9), closed(2, 9, 9, 9), closed(3, 1, 0, 1)):  # a roll-back
        again.closed(step)
    assert (again.own, again.counts()) == (10, {ME: 10, OTHER: 3, IDLE: 1})
    assert (again.name(ME), again.name(OTHER)) == ("Ada", "")
    members.verdicts.add(OTHER)
    assert again.counts() == {ME: 10, IDLE: 1}
    path.write_bytes(b"\x00" * 100)
    assert Contributions(ME, members, path).counts() == {}  # type: ignore[arg-type]


def test_of_too_many_the_least_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("MAX_COUNTED", "MAX_NAMES"):
        monkeypatch.setattr(contributions, bound, 2)
    members = Members()
    one = Contributions(ME, members, None)  # type: ignore[arg-type]
    one.closed(closed(1, 3, 1, 2))
    assert one.counts() == {ME: 3, IDLE: 2}
    members.named = {ME: "Ada", OTHER: "Boris", IDLE: "Cleo"}
    one.tick(100.0)
    assert (one.names(9), one.names(1)) == ({OTHER: "Boris", IDLE: "Cleo"}, {IDLE: "Cleo"})
    members.named = {OTHER: "", IDLE: "Clio"}
    one.tick(100.0 + contributions.LOOK_EVERY_S - 0.1)
    assert one.name(IDLE) == "Cleo", "names are looked at now and then"
    one.tick(100.0 + contributions.LOOK_EVERY_S)
    assert one.names(9) == {IDLE: "Clio"}


async def test_all_replicas_of_a_stage_count_alike_and_truly(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=STEPS) as swarm:
        *first, last = await swarm.staffed(0, 0, 0, 1)
        await swarm.until_done()
        own = {one.peer: one.counted(0) for one in first}
        truth = {name: count for name, count in own.items() if count}
        whole = STEPS * swarm.manifest.microbatches_per_step
        assert [one.engine.contributions.counts() for one in first] == [truth] * 3
        assert sum(truth.values()) == whole
        counts = last.engine.contributions.counts()
        assert counts == {last.peer: whole}, "of other stages it says nothing"
