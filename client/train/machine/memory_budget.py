"""Divides the memory that this volunteer may use among the stages it holds.

State: the memory of every open stage. A stage that drains keeps its memory until it is closed,
because a move is make before break; the next stage waits for it.
"""

from collections.abc import Callable

import trio

from client.compute.memory import Fit, memory_need
from client.errors import UserError
from client.train.workers.opening import Devices, fit_stage
from protocol.manifest import Manifest

MOST_STAGES = 3
"""The home, the second stage, and the target of a move."""


class MemoryBudget:
    """Assigns memory to stages, or refuses when there is not enough; ``drains`` says whether a
    stage will be closed soon."""

    def __init__(
        self,
        manifest: Manifest,
        devices: Callable[[], Devices],
        drains: Callable[[], bool] = bool,
    ) -> None:
        self._manifest, self._devices, self._drains = manifest, devices, drains
        self._taken: dict[int, Fit] = {}
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def free_bytes(self) -> int:
        """Memory for one more stage."""
        return self._devices().memory_bytes - sum(fit.size_bytes for fit in self._taken.values())

    async def take(self, stage: int) -> Fit:
        """Reserve memory for a stage, perhaps when draining ones are gone; raises `UserError`."""
        while True:
            try:
                fit = self._taken[stage] = self._fit(stage)
            except UserError:
                if not self._drains():
                    raise
                await self._changed.park()
            else:
                return fit

    def has_room(self) -> bool:
        """Whether another stage could be opened beside the open ones."""
        for stage in set(range(self._manifest.stage_count)) - self._taken.keys():
            try:
                self._fit(stage)
            except UserError:
                continue
            return True
        return False

    def release(self, stage: int) -> None:
        """Free the memory of a stage that is closed and whose worker is gone."""
        self._taken.pop(stage, None)
        self.look()

    def look(self) -> None:
        """Have the stages that wait look again: one that was to be closed may stay after all."""
        self._changed.unpark_all()

    def _fit(self, stage: int) -> Fit:
        if len(self._taken) >= MOST_STAGES:
            raise UserError(f"{MOST_STAGES} stages are held already", "")
        spare_bytes = self._spare_bytes(stage)
        return fit_stage(self._manifest, stage, self.free_bytes, spare_bytes, self._devices())

    def _spare_bytes(self, stage: int) -> int:
        """Return the memory of another stage, which forward graphs should leave free."""
        others = set(range(self._manifest.stage_count)) - self._taken.keys() - {stage}
        needs = (memory_need(self._manifest, other).total_bytes for other in others)
        return int(max(needs, default=0) / 0.85)
