"""Taking a stage when our own file is no good, or when somebody lies to a newcomer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from client.compute.checkpoint import read_info
from client.compute.replica import state_hash
from client.train.stage.stage_acquisition import StageAcquisition, Terms
from client.train.transfer.blobs import Shelf, offer_of_file
from client.train.transfer.inventory import offer_stored
from protocol.effects import Effect, Explain
from protocol.ids import PeerId
from protocol.recovery.evidence import Evidence
from protocol.recovery.stored import Lineage
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Admit, BlobOffer, BlobQuery
from tests.support.train_swarm import RecordingEngine, TestSwarm, Volunteer, open_swarm


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Explanations about transfers."""
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
    """The holder of stage 0, and the disk of a dead holder of stage 1 with versions 4 and 8."""
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


def shorten(path: Path) -> None:
    path.write_bytes(bytes(1000))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [(differ, "checkpoint-of-wrong-state"), (shorten, "checkpoint-of-wrong-size")],
)
async def test_who_offers_another_state_first_does_not_keep_the_stage_from_beginning(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Path], None],
    reason: str,
) -> None:
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4) as swarm:
        first, disk = await orphaned(swarm)
        liar, honest = await keep(swarm, disk), await keep(swarm, disk)
        another = tmp_path / "another"
        shutil.copy(disk / "stage-1-v8.safetensors", another)
        harm(another)
        lie = offer_of_file("state", 1, 8, another)
        liar.engine.shelf.put(lie, another, temporary=False)
        hesitate(honest.engine.shelf, monkeypatch)
        spare = await swarm.add()
        spare.assign(1)
        snapshots = spare.disk.parent / "snapshots"
        snapshots.mkdir(parents=True)
        (snapshots / ".begin-stage-1-v4.safetensors.part.tmp").write_bytes(b"begun long ago")
        await swarm.until_done()
        assert lineage(first).version == 8
        assert spare.engine.commits[0].version == 9
        assert dict(spare.engine.penalties) == {reason: 1}
        assert not list(snapshots.iterdir()), "working copies stay no longer than they are needed"
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
    ports = SimpleNamespace(send=lambda *_: None)
    machine = SimpleNamespace(lineage=Lineage(), evidence=evidence or Evidence())
    terms = SimpleNamespace(ports=ports, me=ME, history=SimpleNamespace(machine=machine))
    acquisition = StageAcquisition(
        cast(Terms, terms), 0, cast(Any, None), lambda: view, lambda *_: None
    )
    for sender, admit in said:
        acquisition.admit(sender, admit, b"")
    with trio.move_on_after(5):
        return await acquisition.admission()
    return None


def admit(*donors: PeerId) -> Admit:
    return Admit(0, 5, ME, list(donors), roll=list(donors), electors=list(donors))


@pytest.mark.parametrize("liar", [FETCHING, NEXT, PeerId("stranger")])
async def test_only_who_serves_the_stage_lets_us_in(
    autojump_clock: MockClock, liar: PeerId
) -> None:
    assert await admission((liar, admit(liar))) is None
    assert await admission((liar, admit(SERVING))) is None
    assert await admission((SERVING, admit(liar))) is None
    many = [(liar, admit(liar))] * 9
    believed = await admission(*many, (SERVING, admit(liar, SIBLING, SERVING)))
    assert believed is not None
    assert believed.donors == [SIBLING, SERVING]


async def test_a_state_that_the_leader_does_not_know_is_fetched_from_another_donor(
    tmp_path: Path,
    autojump_clock: MockClock,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_swarm(tmp_path, steps=16) as swarm:
        first, honest, liar = await swarm.add(0), await swarm.add(1), await swarm.add(1)
        invent(liar.engine.shelf, monkeypatch)
        hesitate(honest.engine.shelf, monkeypatch)
        swarm.start()
        await swarm.until(lambda: min(first.step(0), honest.step(1), liar.step(1)) >= 3)
        newcomer = await swarm.add(1)
        await swarm.until(lambda: newcomer.serves(1))
        assert any("is rejected" in words for words in said), "the lie was believed, or not told"
        await swarm.until_done()
        assert newcomer.engine.served == [1], "it never had to take the stage anew"
        swarm.assert_exact()


def invent(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shelf for newcomers gets another state, valid by itself."""
    put = shelf.put

    def put_another(offer: BlobOffer, path: Path, *, temporary: bool) -> None:
        if temporary:
            differ(path)
            offer = offer_of_file("state", offer.stage, offer.version, path)
        put(offer, path, temporary=temporary)

    monkeypatch.setattr(shelf, "put", put_another)


def hesitate(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first questions are not answered: another's offer is there before ours."""
    query, asked = shelf.query, list[BlobQuery]()

    def query_late(sender: PeerId, question: BlobQuery) -> None:
        asked.append(question)
        if len(asked) > 8:
            query(sender, question)

    monkeypatch.setattr(shelf, "query", query_late)


async def test_where_certified_members_serve_no_other_lets_a_newcomer_in(
    autojump_clock: MockClock,
) -> None:
    evidence = Evidence()
    evidence.certify(4, [SIBLING])
    assert await admission((SERVING, admit(SERVING, SIBLING)), evidence=evidence) is None
    believed = await admission((SIBLING, admit(SERVING, SIBLING)), evidence=evidence)
    assert believed is not None
    assert believed.donors == [SIBLING]
    evidence.certify(4, [NEXT])  # none of them serves this stage
    assert await admission((SERVING, admit(SERVING)), evidence=evidence) is not None
    evidence.closed(0, 5, bytes(32), [], 0.0)  # it judges by its own work now
    assert await admission((SERVING, admit(SERVING)), evidence=evidence) is not None
