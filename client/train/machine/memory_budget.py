"""Divides the memory that this volunteer may use among the stages it holds.

State: the memory of every open stage. A stage that is draining keeps its memory until it is closed,
because a move is make before break; the next stage waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from client.errors import UserError
from client.train.workers.grouping import ALONE, Grouping
from client.train.workers.offloading import NOWHERE, Offloading
from client.train.workers.opening import Fit, fit_stage, stage_need
from protocol.manifest import Manifest

MOST_STAGES = 3
"""The home, the second stage, and the target of a move."""


class MemoryBudget:
    """Assigns memory to stages, or refuses when there is not enough."""

    def __init__(
        self,
        manifest: Manifest,
        usable_bytes: Callable[[], int],
        offloading: Callable[[], Offloading] = lambda: NOWHERE,
        grouping: Callable[[], Grouping] = lambda: ALONE,
        hold: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        self._manifest, self._usable_bytes = manifest, usable_bytes
        self._offloading, self._grouping = offloading, grouping
        self._hold = hold
        self._taken: dict[int, Fit] = {}
        self._draining: set[int] = set()
        self._beside: dict[int, Fit] = {}
        """Stages that are opened for a case, for a short time."""
        self._changed = trio.Event()

    @property
    def free_bytes(self) -> int:
        """Usable memory minus the memory of open stages."""
        fits = (*self._taken.values(), *self._beside.values())
        return self._usable_bytes() - sum(fit.size_bytes for fit in fits)

    async def take(self, stage: int) -> Fit:
        """Reserve memory for a stage; waits for draining stages, and for a case to end, if there is
        not enough.

        Raises:
            UserError: there is not enough, or three stages are held.
        """
        while True:
            try:
                self._taken[stage] = self._fit(stage)
            except UserError:
                if not self._draining and not self._beside:
                    raise
                await self._changed.wait()
            else:
                self._changes()
                return self._taken[stage]

    def take_beside(self, stage: int) -> Fit:
        """Reserve memory for another stage for the length of a case, at once or not at all.

        Raises:
            UserError: there is not enough.
        """
        if stage in self._beside:
            raise UserError(f"stage {stage} is opened for another case", "")
        fit = self._beside[stage] = fit_stage(
            self._manifest, stage, self.free_bytes, grouping=self._grouping()
        )
        self._changes()
        return fit

    def release_beside(self, stage: int) -> None:
        """Free the memory of a stage that was opened for a case."""
        self._beside.pop(stage, None)
        self._changes()

    def has_room(self) -> bool:
        """Whether another stage could be opened beside the open ones."""
        for stage in set(range(self._manifest.stage_count)) - self._taken.keys():
            try:
                self._fit(stage)
            except UserError:
                continue
            return True
        return False

    def set_draining(self, stage: int, draining: bool) -> None:
        """Note that a stage will be closed soon, or stays after all."""
        if draining and stage in self._taken:
            self._draining.add(stage)
        else:
            self._draining.discard(stage)

    def release(self, stage: int) -> None:
        """Free the memory of a stage that is closed and whose worker is gone."""
        self._taken.pop(stage, None)
        self._draining.discard(stage)
        self._changes()

    def _changes(self) -> None:
        """Tell the machine's other volunteers what we hold, and our stages that wait."""
        fits = (*self._taken.values(), *self._beside.values())
        self._hold(sum(fit.usual_bytes for fit in fits))
        self._changed.set()
        self._changed = trio.Event()

    def _fit(self, stage: int) -> Fit:
        if len(self._taken) >= MOST_STAGES:
            raise UserError(f"{MOST_STAGES} stages are held already", "")
        spare_bytes, offloading = self._spare_bytes(stage), self._offloading()
        return fit_stage(
            self._manifest, stage, self.free_bytes, spare_bytes, offloading, self._grouping()
        )

    def _spare_bytes(self, stage: int) -> int:
        """Return the memory of another stage, which forward graphs should leave free."""
        others = set(range(self._manifest.stage_count)) - self._taken.keys() - {stage}
        needs = (stage_need(self._manifest, other).total_bytes for other in others)
        return int(max(needs, default=0) / 0.85)
