"""Taking a stage when our own file is no good, or when somebody lies to a newcomer."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
import trio

from client.compute.checkpoint import examine, read_info
from client.compute.memory import Fit
from client.compute.process import RequestFailed, WorkerDied
from client.compute.requests import Failed
from client.store.checkpoints import CheckpointFolder
from client.train.stage import stage_acquisition
from client.train.stage.stage_acquisition import BEGIN_S, SLOW_BYTES_PER_S, StageAcquisition
from client.train.transfer import blobs
from client.train.transfer.blobs import DownloadFailed, Filed, Shelf, filed, filed_state
from client.train.transfer.inventory import offer_stored
from client.train.transfer.state_size import data_bytes
from client.train.workers.patience import OPENING_S, state_s
from model_zoo.export import export_hf
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import build_whole
from protocol.ids import PeerId
from protocol.recovery import deciding, following, knowledge, trouble
from protocol.recovery.evidence import DOUBTED_AFTER, Evidence
from protocol.recovery.stored import Lineage
from protocol.transfer.blob import Blob
from protocol.transfer.fetch import LIE as LIES
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Admit, ChunkRequest, Commit
from protocol.wire.parts import Decree
from tests.support.hashes import state_hash
from tests.support.recording_ports import RecordingPorts
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

LIE, _ = LIES


def said(swarm: TestSwarm, part: str) -> int:
    """How often those who are there have said this."""
    return sum(part in event.words for one in swarm.volunteers for event in one.events)


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


async def orphaned(swarm: TestSwarm) -> tuple[Volunteer, Path]:
    """The holder of stage 0, and the disk of a dead holder of stage 1 with versions 4 and 8."""
    first, second = await swarm.add(0), await swarm.add(1)
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
    engine = keeper.engine
    folder = engine.history.folder  # type: ignore[union-attr]
    await offer_stored(folder, engine.shelf, engine)
    return keeper


@pytest.mark.parametrize(("harm", "suffix"), [(rot, ".damaged"), (differ, ".set-aside")])
async def test_a_bad_file_of_ours_is_put_away_and_others_are_asked(
    tmp_path: Path, harm: Callable[[Path], None], suffix: str
) -> None:
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4) as swarm:
        first, disk = await orphaned(swarm)
        for _ in range(2):
            await keep(swarm, disk)
        await swarm.until(lambda: first.lineage.version == 8)  # the spare one decides nothing
        harm(disk / "stage-1-v8.safetensors")
        bad = (disk / "stage-1-v8.safetensors").read_bytes()
        spare = await swarm.add(copies=disk)
        spare.assign(1)
        await swarm.until_done()
        assert spare.engine.commits[0].version == 9, "it began with version 8"
        away = spare.disk / f"stage-1-v8.safetensors{suffix}"
        assert away.read_bytes() == bad, "its bytes are kept"
        assert said(swarm, str(away)) == 1
        swarm.assert_losses()


async def test_who_offers_another_state_first_does_not_keep_the_stage_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4) as swarm:
        first, disk = await orphaned(swarm)
        liar, honest = await keep(swarm, disk), await keep(swarm, disk)
        named, another = disk / "stage-1-v8.safetensors", tmp_path / "another"
        shutil.copy(named, another)
        differ(another)
        pretend(liar.engine.shelf, another, bytes.fromhex(read_info(named).hash))
        hesitate(honest.engine.shelf, monkeypatch)
        spare = await swarm.add()
        spare.assign(1)
        snapshots = spare.disk.parent / "snapshots"
        snapshots.mkdir(parents=True)
        (snapshots / ".begin-stage-1-v4.safetensors.part.tmp").write_bytes(b"begun long ago")
        await swarm.until_done()
        assert first.lineage.version == 8
        assert spare.engine.commits[0].version == 9
        assert spare.refused == {LIE: 1}
        assert not list(snapshots.iterdir()), "working copies stay no longer than they are needed"
        swarm.assert_losses()


def pretend(shelf: Shelf, path: Path, root: bytes) -> None:
    """Give a state as if it had another root."""
    lie = filed_state(*examine(path))
    shelf.put(replace(lie, blob=replace(lie.blob, root=root)), path, temporary=False)


async def test_where_nobody_has_a_sound_copy_the_run_goes_on_from_an_older_one(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4) as swarm:
        first, disk = await orphaned(swarm)
        rot(disk / "stage-1-v8.safetensors")
        spare = await swarm.add(copies=disk)
        spare.assign(1)
        await swarm.until_done()
        assert first.lineage.number == 2
        assert first.lineage.version == 4
        assert spare.engine.commits[0].version == 5
        swarm.assert_losses()


async def test_a_state_that_is_named_and_never_given_is_given_up_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the other stage has never asked for it, and follows all the same."""
    for where in (blobs, stage_acquisition):
        monkeypatch.setattr(where, "IDLE_S", 5.0)
    for where in (trouble, following):
        monkeypatch.setattr(where, "IN_VAIN_S", 20.0)
    for where in (knowledge, deciding):
        monkeypatch.setattr(where, "PATIENCE_S", 20.0)
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4) as swarm:
        first, disk = await orphaned(swarm)
        silent = await keep(swarm, disk)
        monkeypatch.setattr(silent.engine.shelf, "request", AsyncMock())
        older = tmp_path / "older"
        shutil.copytree(disk, older, ignore=shutil.ignore_patterns("*-v8.*"))
        spare = await swarm.add(copies=older)
        spare.assign(1)
        await swarm.until_done()
        assert first.lineage.version == 4
        assert spare.engine.commits[0].version == 5
        swarm.assert_losses()


# --- imported weights ----------------------------------------------------------------------

QWEN2 = ModelSpec("qwen2", 2, 32, 2, 2, 48, context=16)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder whose weights are not those of any swarm's seed."""
    return export_hf(QWEN2, build_whole(QWEN2, seed=99).state_dict(), tmp_path / "model")


async def test_who_offers_other_weights_first_does_not_keep_the_stage_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    async with open_swarm(tmp_path, source=model) as swarm:
        liar, honest = await swarm.add(), await swarm.add(0, starts=True)
        start = swarm.manifest.start[1]  # type: ignore[index]
        another = tmp_path / "another"
        another.write_bytes(bytes(start.size_bytes))
        lie = filed(another)
        lie = replace(lie, blob=replace(lie.blob, root=bytes.fromhex(start.digest)))
        liar.engine.shelf.put(lie, another, temporary=False)
        hesitate(honest.engine.shelf, monkeypatch)
        spare = await swarm.add(1)
        await swarm.until(lambda: spare.serves(1))
        swarm.vanish(liar)
        await swarm.until_done()
        assert spare.refused == {LIE: 1}
        swarm.assert_exact()


async def test_weights_that_nobody_has_are_waited_for(tmp_path: Path, model: Path) -> None:
    async with open_swarm(tmp_path, source=model) as swarm:
        await swarm.add(0)
        await swarm.add(1)
        await swarm.until(lambda: said(swarm, "no member gives the imported weights"))
        await swarm.add(starts=True)
        await swarm.until(lambda: all(any(v.serves(s) for v in swarm.volunteers) for s in (0, 1)))


async def test_a_damaged_start_of_ours_is_fetched_anew(tmp_path: Path, model: Path) -> None:
    async with open_swarm(tmp_path, source=model) as swarm:
        sound, own = await swarm.add(1, starts=True), await swarm.add(starts=True)
        path = own.held_stages.starts[0]
        rot(path)
        own.assign(0)
        await swarm.until_done()
        kept = sound.held_stages.starts[0]
        assert path.read_bytes() == kept.read_bytes()
        swarm.assert_exact()


# --- frozen weights beside adapters ---------------------------------------------------------


async def test_adapters_are_trained_as_by_one_process(tmp_path: Path, model: Path) -> None:
    """Who comes later has the frozen weights from members that were not asked at first."""
    async with open_swarm(tmp_path, source=model, lora=4) as swarm:
        await swarm.add(0, starts=True)
        second = await swarm.add(1)
        await swarm.until(lambda: second.step(1) >= 2)
        newcomer = await swarm.add(1)
        await swarm.until(lambda: newcomer.serves(1))
        await swarm.until_done()
        swarm.assert_exact()
        kept = newcomer.held_stages.starts[1]
        start = swarm.manifest.start[1]  # type: ignore[index]
        assert kept.stat().st_size == start.size_bytes
        await swarm.until(lambda: list(newcomer.disk.glob("stage-1-v*.safetensors")))
        for path in newcomer.disk.glob("stage-1-v*.safetensors"):
            names = [name for name, _ in read_info(path).layout]
            assert names
            assert all(".lora_" in name for name in names)


async def test_adapters_are_recovered_beside_their_frozen_weights(
    tmp_path: Path, model: Path
) -> None:
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4, source=model, lora=4) as swarm:
        first, second = await swarm.add(0, starts=True), await swarm.add(1)
        await swarm.until(lambda: second.step(1) >= 10)
        swarm.vanish(second)
        spare = await swarm.add(copies=second.disk)
        spare.assign(1)
        await swarm.until_done()
        assert first.lineage.version == 8
        assert spare.engine.commits[0].version == 9
        swarm.assert_losses()


# --- newcomers ------------------------------------------------------------------------------

ME, SERVING, SIBLING, FETCHING, NEXT = map(PeerId, ("me", "serving", "sibling", "fetching", "next"))


async def admission(*said: tuple[PeerId, Admit], evidence: Evidence | None = None) -> Admit | None:
    """A newcomer's belief in the others' claims about stage 0."""
    view = SwarmView.of(
        [
            [Replica(SERVING, 5, True), Replica(SIBLING, 5, True), Replica(FETCHING, 5, False)],
            [Replica(NEXT, 5, True)],
        ]
    )
    machine = SimpleNamespace(lineage=Lineage(), evidence=evidence or Evidence())
    history = SimpleNamespace(machine=machine)
    context = SimpleNamespace(engine=RecordingPorts(ME), history=history, view=view)
    acquisition = StageAcquisition(cast(Any, context), 0, cast(Any, None), lambda *_: None)
    for sender, admit in said:
        acquisition.admit(sender, admit, b"")
    with trio.move_on_after(5):
        return await acquisition.admission()
    return None


async def test_who_has_misled_a_newcomer_admits_it_only_if_nobody_else_serves() -> None:
    both = (SERVING, admit(SERVING)), (SIBLING, admit(SIBLING))
    evidence = Evidence()
    evidence.misled(SERVING)
    believed = await admission(*both, evidence=evidence)
    assert believed.donors == [SIBLING]
    evidence.misled(SIBLING)
    believed = await admission(*both, evidence=evidence)
    assert believed.donors == [SERVING]


def admit(*donors: PeerId) -> Admit:
    commit = Commit(0, 4, 1, SERVING, Decree(1, bytes(32), (SERVING,), (SERVING,), 0.0), ())
    return Admit(0, 5, ME, list(donors), commit, bytes(32))


@pytest.mark.parametrize("comes", [False, True])
async def test_who_admits_to_a_state_that_nobody_gives_is_doubted_like_its_donors(
    tmp_path: Path, *, comes: bool
) -> None:
    """Else the only one that is believed in the end is the liar. Where it comes and our own disk
    spoils it, nobody is."""
    evidence, spoils = Evidence(), RequestFailed(Failed(kind="checkpoint", message="damaged"))
    engine = RecordingPorts()
    engine.downloads = SimpleNamespace(  # type: ignore[attr-defined]
        state=lambda stage, version, root: Blob(root, 7, stage, version),
        fetch=AsyncMock(side_effect=None if comes else DownloadFailed("no donor is left")),
    )
    context = SimpleNamespace(
        engine=engine,
        history=SimpleNamespace(machine=SimpleNamespace(evidence=evidence)),
        snapshots=tmp_path,
    )
    worker = SimpleNamespace(call=AsyncMock(side_effect=spoils))
    acquisition = StageAcquisition(cast(Any, context), 0, cast(Any, worker), lambda *_: None)
    for _ in range(DOUBTED_AFTER):
        acquisition.admitted = SERVING, 5
        with pytest.raises(DownloadFailed):
            await acquisition.load(admit(SIBLING))
    assert [evidence.doubts(one) for one in (SERVING, SIBLING)] == [not comes] * 2


async def test_a_state_that_the_leader_does_not_know_is_fetched_from_another_donor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_swarm(tmp_path, steps=16) as swarm:
        first, honest, liar = await swarm.add(0), await swarm.add(1), await swarm.add(1)
        invent(liar.engine.shelf, monkeypatch)
        hesitate(honest.engine.shelf, monkeypatch)
        await swarm.until(lambda: min(first.step(0), honest.step(1), liar.step(1)) >= 3)
        newcomer = await swarm.add(1)
        await swarm.until(lambda: newcomer.serves(1))
        assert newcomer.refused[LIE] == 1, "the lie was believed, or not told"
        await swarm.until_done()
        assert newcomer.engine.served == [1], "it never had to take the stage anew"
        swarm.assert_exact()


def invent(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shelf gives newcomers another state as if it were the one that they ask for."""
    put = shelf.put

    def put_another(made: Filed, path: Path, *, temporary: bool) -> None:
        if temporary:
            differ(path)
            other = filed_state(*examine(path))
            made = replace(other, blob=made.blob)
        put(made, path, temporary=temporary)

    monkeypatch.setattr(shelf, "put", put_another)


def hesitate(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first questions are not answered: another's answer is there before ours."""
    request, asked = shelf.request, list[ChunkRequest]()

    async def request_late(sender: PeerId, question: ChunkRequest) -> None:
        asked.append(question)
        if len(asked) > 8:
            await request(sender, question)

    monkeypatch.setattr(shelf, "request", request_late)


async def test_where_certified_members_serve_no_other_lets_a_newcomer_in() -> None:
    evidence = Evidence()
    evidence.certify(4, [SIBLING])
    assert await admission((SERVING, admit(SERVING, SIBLING)), evidence=evidence) is None
    believed = await admission((SIBLING, admit(SERVING, SIBLING)), evidence=evidence)
    assert believed.donors == [SIBLING]
    for liar in (FETCHING, NEXT, PeerId("stranger")):
        assert await admission((liar, admit(SERVING)), (SERVING, admit(liar))) is None
    evidence.certify(4, [NEXT])  # none of them serves this stage
    assert await admission((SERVING, admit(SERVING)), evidence=evidence) is not None
    evidence.closed(0, 5, bytes(32), [], 0.0)  # it judges by its own work now
    assert await admission((SERVING, admit(SERVING)), evidence=evidence) is not None


async def test_a_worker_that_hangs_while_it_opens_or_loads_is_given_up() -> None:
    ports, worker = RecordingPorts(), Mock()
    worker.call = AsyncMock(side_effect=WorkerDied(-9, ()))
    acquisition = StageAcquisition(Mock(engine=ports), 1, worker, Mock())
    within_s = state_s(data_bytes(ports.manifest, 1))
    for path in (acquisition.open(Fit(0, 0)), acquisition._problem_of(Mock())):
        with pytest.raises(WorkerDied):
            await path
        assert worker.call.await_args.args[1] == within_s
    assert state_s(10**9) > within_s > OPENING_S


async def test_a_state_that_comes_too_slowly_is_given_up_and_its_holders_are_doubted(
    tmp_path: Path,
) -> None:
    engine, history = RecordingPorts(), Mock()
    history.holders.return_value = [SIBLING]
    engine.downloads = SimpleNamespace(  # type: ignore[attr-defined]
        state=lambda stage, version, root: Blob(root, 7, stage, version),
        fetch=Mock(side_effect=lambda *_, **__: trio.sleep_forever()),
    )
    folder = CheckpointFolder(tmp_path / "checkpoints")
    context = SimpleNamespace(
        engine=engine, history=history, snapshots=tmp_path, checkpoints=folder
    )
    acquisition = StageAcquisition(cast(Any, context), 1, Mock(), Mock())
    began, size_bytes = trio.current_time(), data_bytes(engine.manifest, 1)
    with pytest.raises(DownloadFailed, match="did not come from ibling in 60"):
        await acquisition.begin(cast(Any, SimpleNamespace(version=5, hashes=[bytes(32)] * 2)))
    within_s = BEGIN_S + size_bytes / SLOW_BYTES_PER_S
    assert trio.current_time() == pytest.approx(began + within_s)
    history.begun_with.assert_called_once_with(1, False)
