"""The context shared by the stages of one volunteer, and their interface to the engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from client.config import Settings
from client.store.checkpoints import CheckpointFolder
from client.train.machine.capacity import Capacity, usable_memory_bytes
from client.train.machine.memory_budget import MemoryBudget
from client.train.machine.time_spent import TimeSpent
from client.train.ports import Ports, StageHolder
from client.train.recovery.history import History
from client.train.reporting.counters import Counters
from client.train.reporting.event_sink import EventSink
from client.train.swarm.notary import Notary
from client.train.transfer.blobs import Downloads, Shelf
from client.train.transfer.data_search import DataSearch
from client.train.transfer.leaf_supply import LeafSupply
from client.train.workers.opening import Devices, devices_now
from client.train.workers.pool import NewWorker, WorkerPool
from client.train.workers.task_scheduler import TaskScheduler
from model_zoo.specs.codec import CODECS
from protocol.amendments.book import Amendments
from protocol.audit.charges import Charges
from protocol.audit.draw import SECRET_BYTES
from protocol.audit.terms import AuditTerms
from protocol.ids import PeerId, SwarmId
from protocol.manifest import Manifest
from protocol.seat.effects import SeatNews
from protocol.view import SwarmView


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of stage acquisition."""

    checkpoints: CheckpointFolder
    snapshots: Path
    starts: tuple[Path, ...] = ()
    """What the stages of an imported model begin with, by stage."""
    compiled: str = ""
    """For compiled blocks, by all swarms; empty: nothing is compiled."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Constants of all attempts."""

    ports: Owner
    event_sink: EventSink
    me: PeerId
    manifest: Manifest
    swarm: str
    settings: Settings
    capacity: Callable[[], Capacity]
    folders: Folders
    data_search: DataSearch
    shelf: Shelf
    downloads: Downloads
    history: History
    amendments: Callable[[], Amendments]
    """The founder's that are known; asked anew for each seat."""
    leaves: LeafSupply
    """Supplies the training data leaf by leaf."""

    def usable_bytes(self) -> int:
        """Return the memory that our stages may take."""
        return usable_memory_bytes(self.capacity(), self.settings)

    def devices(self) -> Devices:
        """Return what our devices have for a stage now."""
        return devices_now(self.settings, has_host=self.capacity().has_host)


class Owner(Ports, Protocol):
    """A held stage's interface to the engine, besides its ports."""

    @property
    def notary(self) -> Notary:
        """Signs what decides rounds, in all stages."""

    def seats_changed(self) -> None:
        """One of our seats changed: tell the neighbours."""

    def serving(self, stage: int) -> None:
        """Our seat in a stage serves."""

    def lost(self, stage: int, reason: str) -> None:
        """A stage cannot be held."""

    def seat_tells(self, news: SeatNews) -> None:
        """A seat of ours tells what concerns more than its stage."""

    def seat_of(self, stage: int) -> int:
        """Return 0 for our home, 1 for our second stage."""


class StageContext(StageHolder):
    """The context shared by the stages of one volunteer."""

    def __init__(self, terms: Terms, new_worker: NewWorker) -> None:
        super().__init__(terms.manifest.stage_count)
        self.sees = False
        """Whether the view is one of our lineage."""
        self.owner, self.terms = terms.ports, terms
        self.workers = WorkerPool(new_worker)
        self.scheduler = TaskScheduler(len(terms.settings.devices))
        self.time_spent = TimeSpent(terms.settings.compute_share)
        self.memory_budget = MemoryBudget(terms.manifest, terms.usable_bytes, terms.devices)
        self.counters = Counters(terms.ports, terms.event_sink)
        self.audits = _audits_of(terms)
        """None: the run has no audits."""
        self.changed = trio.Event()
        """There is a new view of the swarm; the next one has another event."""

    def update_view(self, view: SwarmView) -> None:
        """Take a new view of the swarm."""
        super().update_view(view)
        self.sees = True
        self.changed.set()
        self.changed = trio.Event()


def _audits_of(terms: Terms) -> AuditTerms | None:
    """Return what our audits go by; None: the run has none."""
    manifest = terms.manifest
    if not manifest.audits:
        return None
    coarse = not CODECS[manifest.averaging_codec].lossless
    mixed = manifest.compute != "fp32"
    return AuditTerms(
        manifest.audits,
        os.urandom(SECRET_BYTES),
        terms.ports.sign,
        coarse,
        Charges(SwarmId(terms.swarm)),
        mixed=mixed,
    )
