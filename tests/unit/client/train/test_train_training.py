"""Pausing within a process: stages are given up in order and held again, and every step stays
exact."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from client.compute.process import Call
from client.compute.requests import Ping, Probed
from client.errors import ExitCode
from client.train import training as training_module
from client.train.machine.disk_room import NoRoom
from client.train.machine.pausing import Pauses
from client.train.stage.held_stage import Diverged
from client.train.training import MEASURING_WORKERS, Training
from protocol.audit.charges import CHARGE, KIND, Charge, verdict_of
from protocol.ids import Stage
from protocol.membership.advert import Advert
from protocol.wire.envelope import Signer
from protocol.wire.parts import VotedOut
from tests.support.local_worker import LocalWorker
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm, training_of


class ScriptedTraining(Training):
    """Volunteers whose places a test assigns instead of the matching."""

    async def _enter(self) -> None:
        self.held_stages.capacity = Probed(threads=1, memory_total_bytes=2**33)
        await trio.sleep_forever()


async def _pausable(
    swarm: TestSwarm, folder: Path, pauses: Pauses
) -> tuple[Volunteer, ScriptedTraining, list[LocalWorker]]:
    """A volunteer of the swarm that may be paused; its workers, as they are started."""
    volunteer, workers = await swarm.add(), list[LocalWorker]()
    made = ScriptedTraining, volunteer, folder / "pausable", pauses
    training = training_of(*made, data=folder / "text", workers=workers)
    volunteer.held_stages = training.held_stages
    swarm._nursery.start_soon(training.run)
    return volunteer, training, workers


async def test_every_step_is_exact_over_a_pause(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=16) as swarm:
        stayer = await swarm.add(0)
        pauses = Pauses(tmp_path, lambda said: None)
        pauser, training, workers = await _pausable(swarm, tmp_path, pauses)
        await swarm.add(1)
        pauser.assign(0)
        await swarm.until(lambda: pauser.step(0) >= 3)
        rounds = training.held_stages.counting.seen.rounds_committed
        assert rounds > 0

        pauses.pause(None, "")
        await swarm.until(lambda: training.held_stages.closed)
        assert training.held_stages.held == {}
        assert workers
        assert all(worker._dead for worker in workers), "no process is left"
        assert pauser.engine.held_stages is training.held_stages
        at = stayer.step(0)
        await swarm.until(lambda: stayer.step(0) >= at + 3)

        pauses.resume()
        await swarm.until(lambda: not training.held_stages.closed)
        pauser.held_stages = training.held_stages
        pauser.assign(0)
        await swarm.until(lambda: pauser.serves(0))
        await swarm.until_done()
        swarm.assert_exact()
        assert training.held_stages.counting.seen.rounds_committed > rounds, "the count goes on"


async def test_charges_that_have_expelled_a_member_outlast_a_pause(tmp_path: Path) -> None:
    """As they outlast the process: others of the stage may not have got all of them."""
    async with open_swarm(tmp_path, audit=20) as swarm:
        pauses = Pauses(tmp_path, lambda said: None)
        pauses.pause(None, "")
        pauser, training, _ = await _pausable(swarm, tmp_path, pauses)
        one, other, liar = (Signer(bytes([n]) * 32) for n in (101, 102, 103))
        body = CHARGE.encode(Charge(1, liar.peer, 7, 1, "lies"))
        charges = tuple(each.sign(KIND, body, swarm.file.swarm) for each in (one, other))
        pauser.engine.seat_tells(verdict_of(VotedOut(1, liar.peer, charges)))
        pauses.resume()
        await swarm.until(lambda: not training.held_stages.closed)
        audits = training.held_stages.audits
        assert audits.verdicts.votes == (VotedOut(1, liar.peer, charges),)


async def test_a_pause_says_why_and_what_ends_it(swarm: TestSwarm) -> None:
    pauses = Pauses(swarm.folder, lambda said: None)
    _, training, _ = await _pausable(swarm, swarm.folder, pauses)
    training.held_stages.pause(NoRoom("the disk is full", swarm.folder, 1))
    assert pauses.now.reason == "the disk is full; training goes on when there is room"
    pauses.release("disk")
    training.held_stages.pause(Diverged("training diverged", "resume to try again"))
    assert pauses.now.reason == "training diverged; resume to try again"


async def test_who_starts_paused_holds_nothing(swarm: TestSwarm) -> None:
    pauses = Pauses(swarm.folder, lambda said: None)
    pauses.pause(None, "since yesterday")
    _, training, workers = await _pausable(swarm, swarm.folder, pauses)
    await trio.sleep(60)
    assert training.held_stages.closed
    assert workers == []
    pauses.resume()
    await swarm.until(lambda: workers)


async def test_who_leaves_for_good_does_not_come_back(swarm: TestSwarm) -> None:
    pauses = Pauses(swarm.folder, lambda said: None)
    _, training, _ = await _pausable(swarm, swarm.folder, pauses)
    await trio.sleep(1)
    pauses.pause(None, "")
    await swarm.until(lambda: training.held_stages.closed)
    await training.drain(for_good=True)
    pauses.resume()
    await trio.sleep(60)
    assert training.held_stages.closed


async def test_who_starts_removes_the_copies_of_a_process_that_was_killed(swarm: TestSwarm) -> None:
    snapshot = swarm.folder / "pausable" / "snapshots" / "snapshot-0-v7.safetensors"
    begun = swarm.folder / "0" / "checkpoints" / ".stage-0-v9.safetensors.tmp"
    for left in (snapshot, begun):
        left.parent.mkdir(parents=True)
        left.write_bytes(b"weights")
    await _pausable(swarm, swarm.folder, Pauses(swarm.folder, lambda said: None))
    await swarm.until(lambda: not (snapshot.exists() or begun.exists()))


async def _measuring(
    swarm: TestSwarm, folder: Path, **choices: Any
) -> tuple[Training, list[LocalWorker]]:
    """One that measures what it can do as nodes do, with some settings; its workers, as they are
    started."""
    volunteer, workers = await swarm.add(), list[LocalWorker]()
    home, pauses = folder / "measuring", Pauses(folder, lambda said: None)
    home.mkdir()
    training = training_of(Training, volunteer, home, pauses, workers=workers, **choices)
    swarm._nursery.start_soon(training.run)
    return training, workers


async def _has_begun_or_failed(swarm: TestSwarm, training: Training) -> None:
    await swarm.until(lambda: training.held_stages.failure or training._engine.matching is not None)


@pytest.mark.parametrize(
    ("device", "words", "step"),
    [
        ("cuda:99", "no device 'cuda:99'", "--device"),
        ("cpu:0,cpu:1", "are 2 devices, and --threads is 1", "raise --threads"),
    ],
)
async def test_devices_that_cannot_be_used_are_said_to_the_user(
    swarm: TestSwarm, device: str, words: str, step: str
) -> None:
    training, _ = await _measuring(swarm, swarm.folder, device=device)
    await _has_begun_or_failed(swarm, training)
    failure = training.held_stages.failure
    assert words in str(failure)
    assert step in failure.next_step
    assert failure.exit_code == ExitCode.CONFIG


@pytest.mark.parametrize("deaths", [1, MEASURING_WORKERS])
async def test_a_worker_that_dies_while_it_measures_is_replaced_a_few_times(
    swarm: TestSwarm, deaths: int
) -> None:
    training, workers = await _measuring(swarm, swarm.folder)
    for died in range(deaths):
        await swarm.until(lambda: len(workers) > died)  # noqa: B023
        workers[died].die()
    await _has_begun_or_failed(swarm, training)
    assert training.held_stages.counting.seen.worker_restarts == deaths
    if deaths < MEASURING_WORKERS:
        assert training.held_stages.failure is None
        assert training._engine.matching is not None, "it has entered the swarm"
    else:
        assert f"died {deaths} times" in str(training.held_stages.failure)


async def test_a_worker_that_hangs_while_it_measures_is_replaced(
    swarm: TestSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = training_module.measured_capacity

    async def hang(*_: object) -> None:
        monkeypatch.setattr(training_module, "measured_capacity", measure)
        await Call[Any](0, Ping(), ()).wait(2.0)

    monkeypatch.setattr(training_module, "measured_capacity", hang)
    training, _ = await _measuring(swarm, swarm.folder)
    await _has_begun_or_failed(swarm, training)
    assert training.held_stages.counting.seen.worker_restarts == 1
    assert training._engine.matching is not None, "it has entered the swarm"


@pytest.mark.parametrize(
    ("dual_homing", "asked", "offered"),
    [(True, 0, 2), (True, 1, 1), (False, 0, 1), (False, 2, 1)],
)
async def test_a_run_without_second_seats_is_one_whose_members_offer_one(
    tmp_path: Path, dual_homing: bool, asked: int, offered: int
) -> None:
    async with open_swarm(tmp_path, dual_homing=dual_homing) as swarm:
        training, _ = await _measuring(swarm, tmp_path, seats=asked)
        await _has_begun_or_failed(swarm, training)
        (advert,) = [member.advert for member in training._engine.membership.roster.members()]
        assert advert.seats == offered


async def test_limits_that_change_while_it_measures_count(
    swarm: TestSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, workers = await _measuring(swarm, swarm.folder)
    await swarm.until(lambda: workers)
    limits = {"upload_limit_bytes_per_s": 1000, "download_limit_bytes_per_s": 2000}
    training.held_stages.settings = replace(training.held_stages.settings, **limits)
    said = list[tuple[float, float]]()
    own_advert = training._engine.own_advert
    really_enter = own_advert.enter

    def enter(advert: Advert, unable: Mapping[Stage, str]) -> None:
        said.append((advert.upload_bytes_per_s, advert.download_bytes_per_s))
        really_enter(advert, unable)

    monkeypatch.setattr(own_advert, "enter", enter)
    await _has_begun_or_failed(swarm, training)
    assert said == [(1000.0, 2000.0)]
