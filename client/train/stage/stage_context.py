"""The context shared by the stages of one volunteer, and their interface to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from client.train.machine.memory_budget import MemoryBudget
from client.train.machine.time_spent import TimeSpent
from client.train.ports import Ports, StageHolder
from client.train.reporting.audit_log import AuditLog
from client.train.reporting.counters import Counters
from client.train.stage.stage_acquisition import Terms
from client.train.workers.pool import WorkerPool
from client.train.workers.task_scheduler import TaskScheduler
from protocol.audit.terms import AuditTerms
from protocol.decree.elector import Elector
from protocol.membership.view import Contradicted
from protocol.pipeline.effects import Committed
from protocol.seat.effects import AgreedOn, HeldOutLoss
from protocol.verdicts import Verdict


class Owner(Ports, Protocol):
    """A held stage's interface to the engine, besides its ports."""

    @property
    def elector(self) -> Elector:
        """The elector of this volunteer, one for all stages."""

    def seats_changed(self) -> None:
        """One of our seats changed: tell the neighbours."""

    def serving(self, stage: int) -> None:
        """Our seat in a stage serves."""

    def lost(self, stage: int, reason: str) -> None:
        """A stage cannot be held."""

    def stage_closed(self, committed: Committed) -> None:
        """A stage of ours has committed a step."""

    def evaluated(self, found: HeldOutLoss) -> None:
        """A seat of ours has a version's loss on held-out text."""

    def convicted(self, out: Verdict | Contradicted) -> None:
        """A majority of a stage has expelled one of its members; or one contradicts itself."""

    def agreed_on(self, said: AgreedOn) -> None:
        """A stage of ours has agreed on an amendment of the founder."""

    def promised(self, stage: int, era: int, step: int) -> tuple[int, int]:
        """Return step and attempt up to which we may have signed where a seat begins at a step."""

    def seat_of(self, stage: int) -> int:
        """Return 0 for our home, 1 for our second stage."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """The context shared by the stages of one volunteer."""

    owner: Owner
    holder: StageHolder
    terms: Terms
    workers: WorkerPool
    scheduler: TaskScheduler
    time_spent: TimeSpent
    memory_budget: MemoryBudget
    counters: Counters
    audit_log: AuditLog
    audits: AuditTerms | None = None
    """None: the run has no audits."""
