"""Taking a stage when the file on our own disk is not what the lineage begins from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from train_swarm import RecordingEngine, TestSwarm, Volunteer, open_swarm
from trio.testing import MockClock

from client.compute.checkpoint import read_info
from client.compute.replica import state_hash
from client.train.inventory import offer_stored
from protocol.effects import Effect, Explain
from protocol.restore.stored import Lineage


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What anybody says of transfers."""
    words: list[str] = []
    perform = RecordingEngine.perform

    def listen(engine: RecordingEngine, effect: Effect) -> None:
        if isinstance(effect, Explain) and effect.topic == "transfer":
            words.append(effect.words)
        perform(engine, effect)

    monkeypatch.setattr(RecordingEngine, "perform", listen)
    return words


def rot(path: Path) -> None:
    """A bit of the data turns; the header still says what the data was."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def differ(path: Path) -> None:
    """A sound file of another state of the same version."""
    rot(path)
    info, data = read_info(path), path.read_bytes()
    other = state_hash(info.version, memoryview(data)[info.data_start :])
    path.write_bytes(data.replace(info.hash.encode(), other.encode()))


def lineage(volunteer: Volunteer) -> Lineage:
    assert volunteer.engine.history is not None
    return volunteer.engine.history.lineage


async def orphaned(swarm: TestSwarm) -> tuple[Volunteer, Path]:
    """Who holds stage 0, and the disk of who held stage 1 and died, with versions 4 and 8."""
    first, second = await swarm.add(0), await swarm.add(1)
    swarm.start()
    await swarm.until(lambda: second.step(1) >= 10)
    swarm.vanish(second)
    assert {path.name for path in second.disk.glob("stage-*")} == {
        "stage-1-v4.safetensors",
        "stage-1-v8.safetensors",
    }
    return first, second.disk


async def keep(swarm: TestSwarm, copies: Path) -> Volunteer:
    """Somebody without a stage who has sound copies and offers them."""
    keeper = await swarm.add(copies=copies)
    engine, manifest = keeper.engine, swarm.manifest
    folder = engine.history._folder  # type: ignore[union-attr]
    await offer_stored(folder, swarm.file.swarm, manifest.stage_count, engine.shelf, engine)
    return keeper


@pytest.mark.parametrize(("harm", "suffix"), [(rot, ".damaged"), (differ, ".set-aside")])
async def test_a_bad_file_of_ours_is_put_away_and_others_are_asked(
    tmp_path: Path,
    autojump_clock: MockClock,
    said: list[str],
    harm: Callable[[Path], None],
    suffix: str,
) -> None:
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4) as swarm:
        first, disk = await orphaned(swarm)
        for _ in range(2):
            await keep(swarm, disk)
        harm(disk / "stage-1-v8.safetensors")
        bad = (disk / "stage-1-v8.safetensors").read_bytes()
        spare = await swarm.add(copies=disk)
        spare.assign(1)
        await swarm.until_done()
        assert lineage(first).version == 8
        assert spare.engine.commits[0].version == 9
        away = spare.disk / f"stage-1-v8.safetensors{suffix}"
        assert away.read_bytes() == bad, "its bytes are kept"
        assert sum(str(away) in words for words in said) == 1
        swarm._assert_losses()


async def test_where_nobody_has_a_sound_copy_the_run_goes_on_from_an_older_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4) as swarm:
        first, disk = await orphaned(swarm)
        rot(disk / "stage-1-v8.safetensors")
        spare = await swarm.add(copies=disk)
        spare.assign(1)
        await swarm.until_done()
        assert lineage(first).number == 2
        assert lineage(first).version == 4
        assert spare.engine.commits[0].version == 5
        swarm._assert_losses()
