"""A disk that takes no state, or gives none for a while: the node goes on trying."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import trio

from client.compute.checkpoint import build_header
from client.errors import UserError
from tests.support.train_swarm import open_swarm


@pytest.mark.parametrize("problem", ["full", "no folder"])
async def test_a_disk_that_takes_no_state_does_not_end_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    async with open_swarm(tmp_path, steps=40) as swarm:
        first, _ = await swarm.add(0), await swarm.add(1)
        swarm.start()
        await swarm.until(lambda: first.step(0) >= 2)
        newcomer, lacks = await swarm.add(), list[UserError]()
        newcomer.held_stages.pause = lacks.append
        snapshots = newcomer.held_stages.terms.folders.snapshots
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
            header = build_header(
                swarm=swarm.file.swarm,
                stage=1,
                stages=2,
                version=version,
                digest="ab" * 32,
                layout=(("w", (4,)),),
            )
            (disk / f"stage-1-v{version}.safetensors").write_bytes(header + bytes(48))

        failed = list[Path]()

        def fail(path: Path, *_: object, **__: object) -> None:
            failed.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(Path, method, fail)
            volunteer = await swarm.add(copies=disk)
            history, me = volunteer.engine.history, volunteer.engine.signer.peer
            assert history is not None
            machine = history.machine
            await swarm.until(lambda: failed)
        assert me not in machine.known.stored_live(), "what was not looked at is not called empty"
        await swarm.until(lambda: any(one.copies for one in machine.known.stored_live().values()))
        assert [copy.version for copy in machine.known.stored_live()[me].copies] == [4, 8]
        assert len(list(volunteer.disk.iterdir())) == 2
