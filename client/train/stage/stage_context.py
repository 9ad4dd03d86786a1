"""The context shared by the stages of one volunteer."""

import os
from pathlib import Path

import trio

from client.compute.process import Worker
from client.compute.requests import Probed
from client.config import Settings
from client.store.paths import Entry
from client.store.texts import TextStore
from client.train.engine import Engine
from client.train.machine.memory_budget import MemoryBudget
from client.train.machine.time_spent import TimeSpent
from client.train.ports import StageHolder
from client.train.reporting.counters import Counting
from client.train.transfer.leaf_supply import LeafSupply
from client.train.workers.opening import Devices, devices_now
from client.train.workers.pool import NewWorker, WorkerPool
from client.train.workers.task_scheduler import TaskScheduler
from model_zoo.specs.codec import CODECS
from protocol.audit.charges import Charges
from protocol.audit.draw import SECRET_BYTES
from protocol.audit.terms import AuditTerms
from protocol.ids import PeerId, Stage
from protocol.view import SwarmView


class StageContext(StageHolder):
    """The context shared by the stages of one volunteer.

    Args:
        engine: with the run's history.
        settings: the owner's; those of ``LIVE`` may be others later.
        data: the folder of the files beside the identity.
        data_path: the folder of training data that the user gave.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        data: Path,
        data_path: Path | None = None,
        new_worker: NewWorker = Worker,
    ) -> None:
        manifest = engine.manifest
        super().__init__(manifest.stage_count)
        self.sees = False
        """Whether the view is one of our lineage."""
        assert engine.history is not None, "who only looks on holds no stage"
        self.engine, self.history, self.settings = engine, engine.history, settings
        self.data, self.data_path = data, data_path
        texts = TextStore(data / Entry.TEXTS)
        self.checkpoints, self.snapshots = self.history.folder, data / Entry.SNAPSHOTS
        self.starts = tuple(texts.path(start.digest) for start in manifest.start)
        """What the stages of an imported model begin with, by stage."""
        self.compiled = str(data / Entry.COMPILED)
        """Folder for compiled blocks, by all swarms."""
        sources = [path for path in (data_path, texts.origin(manifest.data.digest)) if path]
        self.leaves = LeafSupply(engine, texts, sources, settings.data_cache_bytes)
        """Supplies the training data leaf by leaf."""
        engine.downloads.takers.append(self.leaves)
        self.capacity = Probed()
        """Measured before a stage is assigned."""
        self.workers = WorkerPool(new_worker)
        self.scheduler = TaskScheduler(len(settings.devices))
        self.time_spent = TimeSpent(settings.compute_share)
        self.memory_budget = MemoryBudget(
            manifest,
            self.devices,
            lambda: any(held.machine.drains for held in self.held.values()),
        )
        self.counting = Counting(engine, engine.event_sink)
        self.audits = _audits_of(engine)
        """None: the run has no audits."""
        self.let_go = trio.Event()
        """Stages are given up also if their last checkpoints cannot be written."""
        self.changed = trio.Event()
        """There is a new view of the swarm; the next one has another event."""

    def linked(self, peer: PeerId) -> None:
        """A member has come."""
        self.leaves.linked(peer)

    def unable(self) -> dict[Stage, str]:
        """Return the stages that cannot be taken, with the reasons."""
        return self.leaves.unable()

    def devices(self) -> Devices:
        """Return what our devices have for stages now."""
        return devices_now(self.settings, self.capacity)

    def update_view(self, view: SwarmView) -> None:
        """Take a new view of the swarm."""
        super().update_view(view)
        self.sees = True
        self.changed.set()
        self.changed = trio.Event()


def _audits_of(engine: Engine) -> AuditTerms | None:
    """Return what our audits go by; None: the run has none."""
    manifest = engine.manifest
    if not manifest.audits:
        return None
    coarse = not CODECS[manifest.averaging_codec].lossless
    mixed = manifest.compute != "fp32"
    return AuditTerms(
        manifest.audits,
        os.urandom(SECRET_BYTES),
        engine.sign,
        coarse,
        Charges(engine.swarm),
        verdicts=engine.membership.verdicts,
        mixed=mixed,
    )
