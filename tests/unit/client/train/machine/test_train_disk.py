"""A disk that takes no state, or gives none for a while: the node goes on trying, or pauses."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from client.errors import UserError
from client.train.machine.disk_room import AGAIN_S, NoRoom
from client.train.machine.pausing import LOOK_S, Pauses
from tests.support.hashes import checkpoint_of
from tests.support.train_swarm import open_swarm


@pytest.mark.parametrize("problem", ["full", "no folder"])
async def test_a_disk_that_takes_no_state_does_not_end_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    async with open_swarm(tmp_path, steps=40) as swarm:
        await swarm.staffed(0, 1, steps=2)
        newcomer, lacks = await swarm.add(), list[UserError]()
        newcomer.held_stages.pause = lacks.append
        snapshots = newcomer.held_stages.snapshots
        with monkeypatch.context() as patch:
            if problem == "full":
                usage = shutil.disk_usage(tmp_path)._replace(free=100)
                patch.setattr(shutil, "disk_usage", lambda _: usage)
            else:
                snapshots.parent.mkdir(exist_ok=True)
                snapshots.write_bytes(b"in the way")
            newcomer.assign(0)
            await trio.sleep(10)
            assert not newcomer.serves(0)
            assert newcomer.held_stages.failure is None
        if problem == "full":
            assert 0 not in newcomer.held_stages.held, "others may take it"
            assert "more are needed" in str(lacks[0])
            newcomer.assign(0)  # once the pause is over
        else:
            snapshots.unlink()
        await swarm.until(lambda: newcomer.serves(0))
        assert newcomer.engine.internal_errors == 0


@pytest.mark.parametrize("method", ["iterdir", "open"])
async def test_copies_that_cannot_be_read_for_a_while_are_neither_condemned_nor_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    disk = tmp_path / "copies"
    disk.mkdir()
    async with open_swarm(tmp_path, steps=8) as swarm:
        for version in (4, 8):
            saved = checkpoint_of(swarm.file.swarm, 1, 2, version, bytes(48))
            (disk / f"stage-1-v{version}.safetensors").write_bytes(saved)

        failed = list[Path]()

        def fail(path: Path, *_: object, **__: object) -> None:
            failed.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(Path, method, fail)
            volunteer = await swarm.add(copies=disk)
            history, me = volunteer.engine.history, volunteer.engine.signer.peer
            machine = history.machine
            await swarm.until(lambda: failed)
        assert me not in machine.known.stored_live(), "what was not looked at is not called empty"
        await swarm.until(lambda: any(one.copies for one in machine.known.stored_live().values()))
        assert [copy.version for copy in machine.known.stored_live()[me].copies] == [4, 8]
        assert len(list(volunteer.disk.iterdir())) == 2


@pytest.mark.parametrize("room_after_s", [20.0, float("inf")])
async def test_it_pauses_until_there_is_room_or_for_a_while(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_after_s: float
) -> None:
    begun, pauses = trio.current_time(), Pauses(tmp_path, lambda said: None)

    def usage(folder: Path) -> SimpleNamespace:
        room = trio.current_time() - begun >= room_after_s
        return SimpleNamespace(free=1000 if room else 999)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    lack = NoRoom("the disk is full", Path("/disk"), 1000)
    pauses.hold("disk", str(lack), ends=lack.is_over)
    nursery.start_soon(pauses.run)
    await pauses.wait_clear()
    expected = min(room_after_s, AGAIN_S)
    assert expected <= trio.current_time() - begun <= expected + LOOK_S


async def test_a_disk_that_cannot_be_asked_is_tried(tmp_path: Path) -> None:
    assert NoRoom("full", tmp_path / "gone", 1000).is_over()
