"""Volunteers in one process: real engines, seats and executors, a network in memory, virtual time.

The matching is a script here: a test says who is assigned what, as the matching's effects would.
"""

import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest.mock import AsyncMock

import torch
import trio

from client.cli.commands.create import sign
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.compute.process import Worker
from client.compute.requests import Probed
from client.config import Settings
from client.control.snapshot import Snapshot
from client.events import Event, StepCommitted
from client.lab.founding import trusting
from client.lab.reference import train_reference
from client.net.network import Inbound, NetEvent
from client.node.status import take_snapshot
from client.store.checkpoints import CheckpointFolder
from client.store.paths import Entry as HomeEntry
from client.store.paths import home_folders
from client.store.texts import TextStore
from client.train.engine import Engine
from client.train.machine.pausing import Pauses
from client.train.reporting.event_sink import EventSink
from client.train.stage.held_stage import HeldStageDriver
from client.train.stage.held_stages import HeldStages
from client.train.training import Training
from client.train.workers.pool import NewWorker
from model_zoo.data import BUILT_IN
from model_zoo.datasets.build import build
from model_zoo.huggingface.imports import open_folder
from model_zoo.specs.optimizer import OptimizerSpec
from protocol.ids import PeerId, Stage
from protocol.invite import SwarmFile
from protocol.matching.effects import Assign, Unassign
from protocol.membership.advert import Advert
from protocol.pipeline.effects import Committed
from protocol.recovery.stored import Lineage
from protocol.seat.effects import SeatNews
from protocol.wire.envelope import Signer
from protocol.wire.messages import Message
from tests.support.local_worker import LocalWorker
from tests.support.memory_network import MemoryHub, open_memory_hub
from tests.support.texts import corpus_of
from tests.support.virtual_time import threads_at_once

LIMIT_S = 600.0
"""Virtual seconds that anything may take."""
PLENTY_BYTES = 2**33
FOUNDER = Signer(bytes(range(32)))


def _virtual_clock(ahead_s: float) -> float:
    return 1.8e9 + trio.current_time() + ahead_s


class RecordingEngine(Engine):
    """Keeps what a test wants to compare."""

    commits: list[Committed]
    given_up: dict[int, str]
    served: list[int]
    own_bytes = 0
    """That its seats have sent to each other."""

    def take(self, event: NetEvent) -> None:
        if isinstance(event, Inbound) and event.peer == self.signer.peer:
            self.own_bytes += len(event.payload)
        super().take(event)

    def seat_tells(self, news: SeatNews) -> None:
        if isinstance(news, Committed):
            self.commits.append(news)
        super().seat_tells(news)

    def lost(self, stage: int, reason: str) -> None:
        self.given_up[stage] = reason
        super().lost(stage, reason)

    def serving(self, stage: int) -> None:
        self.served.append(stage)
        super().serving(stage)


Distortion = Callable[[PeerId, Message, bytes], tuple[Message, bytes]]


@dataclass
class Volunteer:
    """One of them."""

    engine: RecordingEngine
    held_stages: HeldStages
    events: list[Event]
    workers: list[LocalWorker]
    life: trio.CancelScope
    disk: Path
    """The folder of its checkpoints."""

    @property
    def peer(self) -> PeerId:
        return self.engine.signer.peer

    @property
    def lineage(self) -> Lineage:
        return self.engine.history.lineage

    @property
    def refused(self) -> Counter[str]:
        """What it holds against others, by reason."""
        return Counter(self.engine.network.statistics().refused)

    def shown(self, *, stopping: bool = False) -> Snapshot:
        """What its owner sees."""
        return take_snapshot(self.engine, self.held_stages, 0.0, stopping=stopping)

    @property
    def losses(self) -> dict[int, float]:
        return {e.step: e.loss for e in self.events if isinstance(e, StepCommitted)}

    def counted(self, stage: int) -> int:
        """Its microbatches in committed steps of a stage."""
        return sum(commit.counted for commit in self.engine.commits if commit.stage == stage)

    def distort(self, change: Distortion) -> None:
        """Send what ``change`` makes of each message and its payload from now on."""
        send = self.engine.send

        def lying(to: PeerId, message: Message, payload: bytes = b"") -> None:
            send(to, *change(to, message, payload))

        self.engine.send = lying  # type: ignore[method-assign]

    def assign(self, stage: int) -> None:
        self.engine.matched([Assign(Stage(stage), "the test says so")])

    def unassign(self, stage: int) -> None:
        self.engine.matched([Unassign(Stage(stage), "the test says so")])

    def held(self, stage: int) -> HeldStageDriver:
        return self.held_stages.held[stage]

    def step(self, stage: int) -> int:
        """The version its seat is at; -1 without a seat."""
        held = self.held_stages.held.get(stage)
        return held.driver.seat.step if held and held.driver else -1

    def serves(self, stage: int) -> bool:
        held = self.held_stages.held.get(stage)
        return bool(held and held.driver and held.driver.seat.serving)


class TestSwarm:
    """The volunteers and what they have done together."""

    __test__ = False

    def __init__(
        self,
        folder: Path,
        hub: MemoryHub,
        nursery: trio.Nursery,
        run: RunChoices,
        *,
        lora: int | None = None,
        heads: int = 2,
    ) -> None:
        torch.set_num_threads(1)
        self.data = Path(run.data) if run.data != BUILT_IN else _some_data(folder)
        run, founder = replace(trusting(run), data=str(self.data)), FOUNDER
        model = ModelChoices(layers=run.stages, width=32, heads=heads, context=16)
        model = model if run.source is None else ModelChoices(lora=lora)
        self.starts, self._source = TextStore(folder / "starts"), run.source
        manifest = found_swarm(founder.peer, run, model, OptimizerChoices(), self.starts).manifest
        self.file: SwarmFile = sign(manifest, founder, ())
        self.manifest, self.volunteers = manifest, list[Volunteer]()
        self.dead: list[Volunteer] = []
        self.cache_bytes = 2**30
        self.folder, self.hub, self._nursery = folder, hub, nursery

    async def add(
        self,
        stage: int | None = None,
        memory_bytes: int = 0,
        copies: Path | None = None,
        *,
        text: bool = True,
        founder: bool = False,
        starts: bool = False,
        device: str = "cpu",
        ahead_s: float | None = None,
        home: Path | None = None,
    ) -> Volunteer:
        """Start a volunteer, link it to the others, assign it a stage; ``copies``: checkpoints that
        lie on its disk; ``text``: it has the training text; ``founder``: it has made the manifest;
        ``starts``: it has what every stage of an imported model begins with; ``device``: where it
        computes; ``ahead_s``: its clock goes with the virtual time,
        and is ahead by so much; ``home``: of another one, whose records it goes on with.
        """
        number = len(self.volunteers) + len(self.dead)
        signer = FOUNDER if founder else Signer(bytes([number + 1]) * 32)
        events: list[Event] = []
        home = (self.folder / str(number)) if home is None else home
        disk = self.folder / str(number) / "checkpoints"
        if copies is not None:
            shutil.copytree(copies, disk)
        engine = RecordingEngine(
            self.hub.join(signer.peer),
            signer,
            self.file,
            EventSink(events.append),
            self._nursery,
            home_folders(home),
            CheckpointFolder(disk),
        )
        engine.commits, engine.given_up, engine.served = [], {}, []
        if ahead_s is not None:
            engine.wall = engine.handshake.clock = partial(_virtual_clock, ahead_s)
        workers: list[LocalWorker] = []
        if starts:
            shutil.copytree(self.starts.folder, disk.parent / HomeEntry.TEXTS)
        own = Settings(
            threads=1,
            device=device,
            memory_limit_bytes=memory_bytes,
            data_cache_bytes=self.cache_bytes,
        )
        where = disk.parent, self.data if text else None
        held_stages = engine.held_stages = HeldStages(engine, own, *where, _local(workers))
        # who leaves waits for no copy of its state, unless a test has one kept
        held_stages.buddies.hand_over = AsyncMock(return_value=False)  # type: ignore[method-assign]
        held_stages.capacity = Probed(threads=1, memory_total_bytes=PLENTY_BYTES)
        life = trio.CancelScope()
        self._nursery.start_soon(
            _within, life, engine.run, held_stages.history.run, held_stages.run
        )
        engine.perform(*engine.membership.describe(ADVERT, engine.now()))
        for other in self.volunteers:
            await engine.network.connect(other.engine.network.addresses[0])
        volunteer = Volunteer(engine, held_stages, events, workers, life, disk)
        self.volunteers.append(volunteer)
        if stage is not None:
            volunteer.assign(stage)
        return volunteer

    async def staffed(self, *stages: int, steps: int = 0) -> list[Volunteer]:
        """Train with a volunteer for each of these, who all serve when it begins; return them once
        they have closed so many steps."""
        volunteers = [await self.add(stage) for stage in stages]
        pairs = list(zip(volunteers, stages, strict=True))
        await self.until(lambda: all(volunteer.serves(stage) for volunteer, stage in pairs))
        await self.until(lambda: all(v.step(stage) >= steps for v, stage in pairs))
        return volunteers

    def vanish(self, volunteer: Volunteer) -> None:
        """It dies, as by SIGKILL: nothing is said, its connections end."""
        self.volunteers.remove(volunteer)
        self.dead.append(volunteer)
        volunteer.life.cancel()
        for other in self.volunteers:
            self.hub.unlink(volunteer.peer, other.peer, "reset")

    async def until(self, happened: Callable[[], object]) -> None:
        """Let everybody go on until something is the case."""
        with trio.fail_after(LIMIT_S):
            while not happened():
                await trio.sleep(0.005)
                failures = [v.held_stages.failure for v in self.volunteers if v.held_stages.failure]
                assert not failures, failures

    async def until_done(self) -> None:
        """Every stage has closed its last step at everybody who holds it."""
        await self.until(lambda: all(map(self._is_done, self.volunteers)))

    def _is_done(self, volunteer: Volunteer) -> bool:
        drivers, history = volunteer.held_stages.drivers(), volunteer.engine.history
        return history.machine.known.is_over() and all(one.seat.finished for one in drivers)

    def assert_exact(self) -> None:
        """I1, I2, I5, and the losses of one process."""
        counted: dict[tuple[int, int], int] = defaultdict(int)
        hashes: dict[tuple[int, int], set[str]] = defaultdict(set)
        for volunteer in [*self.volunteers, *self.dead]:
            assert volunteer.engine.internal_errors == 0
            assert volunteer.held_stages.counting.seen.doubled_microbatches == 0
            for commit in volunteer.engine.commits:
                counted[commit.stage, commit.version] += commit.counted
                hashes[commit.stage, commit.version].add(commit.hash)
        stages, steps = range(self.manifest.stage_count), range(1, self.manifest.steps + 1)
        closed = {(stage, version) for stage in stages for version in steps}
        assert set(counted) == closed
        for step, count in counted.items():
            assert count <= self.manifest.microbatches_per_step, step
            assert count == self.manifest.microbatches_per_step or step in self._died_closing(), (
                step
            )
        assert all(len(of_version) == 1 for of_version in hashes.values())
        self.assert_losses()

    def _died_closing(self) -> set[tuple[int, int]]:
        """The steps that dead volunteers may have given a sum for and not lived to see closed.

        Their counts are lost with them; the losses show that their work is in the step.
        """
        closing = set[tuple[int, int]]()
        for volunteer in self.dead:
            newest: dict[int, int] = dict.fromkeys(range(self.manifest.stage_count), 0)
            for commit in volunteer.engine.commits:
                newest[commit.stage] = max(newest[commit.stage], commit.version)
            closing |= {(stage, version + 1) for stage, version in newest.items()}
        return closing

    def assert_losses(self, *turns: tuple[int, OptimizerSpec]) -> None:
        """Those of one process, that turns likewise (I3)."""
        losses: dict[int, float] = {}
        for volunteer in [*self.dead, *self.volunteers]:
            losses |= volunteer.losses
        run, corpus, source = self.manifest, corpus_of(str(self.data)), self._source
        start = None
        if source is not None:
            with open_folder(source, self.manifest.model.context) as imported:
                start = {name: imported.tensor(name) for name in imported.names}
        expected = train_reference(run, corpus, threads=1, start=start, turns=turns).losses
        for step, loss in enumerate(expected):
            tolerance = 1e-5 if step < 20 else 1e-3
            assert abs(losses[step] - loss) <= tolerance * loss, (step, losses[step], loss)


ADVERT = Advert(
    addresses=(),
    flops=1e9,
    memory_bytes=PLENTY_BYTES,
    upload_bytes_per_s=1e6,
    download_bytes_per_s=1e6,
    seats=0,
    joined=1,
)


def _some_data(folder: Path) -> Path:
    if not (made := folder / "tokens").exists():
        (text := folder / "text").write_text("the quick brown fox jumps over the lazy dog " * 400)
        build([text], made)
    return made


async def _within(scope: trio.CancelScope, *tasks: Callable[[], Awaitable[None]]) -> None:
    with scope:
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(task)


@asynccontextmanager
async def open_swarm(
    folder: Path,
    *,
    lora: int | None = None,
    heads: int = 2,
    **choices: Any,
) -> AsyncIterator[TestSwarm]:
    """A swarm without volunteers; ``choices`` are those of a founder.

    With ``lora`` adapters of that rank are trained; ``heads`` are those of attention.
    """
    fields: dict[str, Any] = {
        "name": "test",
        "stages": 2,
        "steps": 8,
        "sequences": 2,
        "microbatches": 4,
        "checkpoint_every": 100,
        "measure": False,
        "boundary_codec": "fp32",
        "averaging_codec": "fp32",
    }
    with threads_at_once():
        async with open_memory_hub() as hub, trio.open_nursery() as nursery:
            run = RunChoices(**{**fields, **choices})
            yield TestSwarm(folder, hub, nursery, run, lora=lora, heads=heads)
            nursery.cancel_scope.cancel()


def _local(workers: list[LocalWorker]) -> NewWorker:
    def new() -> Worker:
        workers.append(LocalWorker())
        return cast(Worker, workers[-1])

    return new


Kind = TypeVar("Kind", bound=Training)


def training_of(
    kind: type[Kind],
    volunteer: Volunteer,
    home: Path,
    pauses: Pauses | None = None,
    *,
    data: Path | None = None,
    workers: list[LocalWorker] | None = None,
    **choices: Any,
) -> Kind:
    """What trains for a volunteer, as a node makes it with some settings; its workers are those of
    a test."""
    engine, own = volunteer.engine, Settings(**{"threads": 1, "device": "cpu", **choices})
    held_stages = HeldStages(engine, own, home, data, _local([] if workers is None else workers))
    return kind(held_stages, pauses or Pauses(home, lambda said: None))
