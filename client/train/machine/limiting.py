"""Enforces the owner's conditions: observes this machine and holds stages back when one fails.

A thin driver: ``client.limits`` decides. It also counts the day's traffic on disk, so that a
restart does not begin a new quota. State: today's use, and the traffic counted already.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import trio

from client.config import Settings
from client.limits.battery import on_battery
from client.limits.decision import Facts, decide
from client.limits.idle import find_idleness
from client.limits.usage import DayUse
from client.store.paths import Entry
from client.store.persisted import Persisted
from client.train.machine.pausing import Pauses

LOOK_S = 5.0
SAVE_EVERY_S = 60.0
CAUSE = "limits"


@dataclass(frozen=True, slots=True)
class Senses:
    """The driver's sources of facts."""

    carried_bytes: Callable[[], int]
    """Sent and received since the node started."""
    now: Callable[[], datetime] = datetime.now
    """The local clock, naive."""
    idleness: Callable[[float], Awaitable[bool | str]] = find_idleness
    on_battery: Callable[[], bool | None] = on_battery


class Limiting:
    """See the module's docstring. ``folder`` holds the files beside the identity."""

    def __init__(self, settings: Settings, folder: Path, pauses: Pauses, senses: Senses) -> None:
        self._settings, self._file = settings, Persisted(folder / Entry.USAGE, DayUse)
        self._pauses, self._senses = pauses, senses
        self._counted = senses.carried_bytes()
        self._use = self._file.peek() or DayUse(senses.now().date())

    def change(self, settings: Settings) -> None:
        """Decide by these settings from the next look on."""
        self._settings = settings

    @property
    def used_bytes(self) -> int:
        """Sent and received today, up to now."""
        self._count()
        return self._use.used_bytes

    @property
    def used_up(self) -> bool:
        """Whether today's quota is used up."""
        return 0 < self._settings.daily_quota_bytes <= self.used_bytes

    async def run(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Look every few seconds until cancelled; started once the first look is over."""
        saved = trio.current_time()
        try:
            while True:
                await self.look()
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                if trio.current_time() - saved >= SAVE_EVERY_S:
                    saved = trio.current_time()
                    self._save()
                await trio.sleep(LOOK_S)
        finally:
            self._save()

    async def look(self) -> None:
        """Collect the facts, decide, and apply the decision."""
        facts = await self._facts()
        held = decide(self._senses.now(), facts, self._settings)
        if held is None:
            self._pauses.release(CAUSE)
            return
        until = None if held.until is None else held.until.timestamp()
        self._pauses.hold(CAUSE, held.reason, until)

    async def _facts(self) -> Facts:
        settings = self._settings
        idle: bool | str = True
        if settings.only_when_idle:
            idle = await self._senses.idleness(60 * settings.idle_after_minutes)
        battery = self._senses.on_battery() if settings.not_on_battery else False
        return Facts(self.used_bytes, battery, idle)

    def _count(self) -> None:
        carried = self._senses.carried_bytes()
        self._use = self._use.add(self._senses.now().date(), carried - self._counted)
        self._counted = carried

    def _save(self) -> None:
        self._count()
        self._file.keep(self._use)
