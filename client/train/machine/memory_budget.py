"""Divides the memory that this volunteer may use among the stages it holds.

State: the memory of every open stage. A stage that is draining keeps its memory until it is closed,
because a move is make before break; the next stage waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from client.errors import UserError
from client.train.workers.devices import ONE, Devices
from client.train.workers.opening import Fit, fit_stage, stage_need
from protocol.manifest import Manifest

MOST_STAGES = 3
"""The home, the second stage, and the target of a move."""
CROWDED_S = 5.0
"""Between two looks whether the machine's other volunteers have left memory."""


class MemoryBudget:
    """Assigns memory to stages, or refuses when there is not enough.

    Args:
        manifest: of the swarm.
        usable_bytes: memory that all our stages may take, with the graphs they keep.
        devices: what else they have.
        left_bytes: what the machine's other volunteers leave for what our stages usually take.
        hold: tells them what ours take.
        say: explains why a stage waits.
    """

    def __init__(
        self,
        manifest: Manifest,
        usable_bytes: Callable[[], int],
        devices: Callable[[], Devices] = lambda: ONE,
        left_bytes: Callable[[], float] = lambda: math.inf,
        hold: Callable[[int], None] = lambda size_bytes: None,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._manifest, self._usable_bytes = manifest, usable_bytes
        self._devices = devices
        self._left_bytes, self._hold, self._say = left_bytes, hold, say
        self._taken: dict[int, Fit] = {}
        self._draining: set[int] = set()
        self._changed = trio.Event()

    @property
    def free_bytes(self) -> int:
        """Memory for one more stage."""
        left = self._left_bytes() - sum(fit.usual_bytes for fit in self._fits)
        return int(min(self._own_bytes, left))

    @property
    def _own_bytes(self) -> int:
        """The same, if this machine had no other volunteers."""
        return self._usable_bytes() - sum(fit.size_bytes for fit in self._fits)

    @property
    def _fits(self) -> tuple[Fit, ...]:
        return tuple(self._taken.values())

    async def take(self, stage: int) -> Fit:
        """Reserve memory for a stage; if there is not enough, waits for draining stages, and for
        the machine's other volunteers.

        Raises:
            UserError: there is not enough, or three stages are held.
        """
        said = False
        while True:
            try:
                self._taken[stage] = self._fit(stage)
            except UserError as error:
                crowded = self._is_crowded(stage)
                if not self._draining and not crowded:
                    raise
                if crowded and not said:
                    self._say(f"waiting for this machine's other volunteers: {error}")
                    said = True
                with trio.move_on_after(CROWDED_S):
                    await self._changed.wait()
            else:
                self._changes()
                return self._taken[stage]

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
        self._hold(sum(fit.usual_bytes for fit in self._fits))
        self._changed.set()
        self._changed = trio.Event()

    def _fit(self, stage: int) -> Fit:
        return self._fit_into(self.free_bytes, stage)

    def _fit_into(self, free_bytes: int, stage: int) -> Fit:
        if len(self._taken) >= MOST_STAGES:
            raise UserError(f"{MOST_STAGES} stages are held already", "")
        spare_bytes = self._spare_bytes(stage)
        return fit_stage(self._manifest, stage, free_bytes, spare_bytes, self._devices())

    def _is_crowded(self, stage: int) -> bool:
        """Whether a stage would fit but for the machine's other volunteers."""
        try:
            self._fit_into(self._own_bytes, stage)
        except UserError:
            return False
        return True

    def _spare_bytes(self, stage: int) -> int:
        """Return the memory of another stage, which forward graphs should leave free."""
        others = set(range(self._manifest.stage_count)) - self._taken.keys() - {stage}
        needs = (stage_need(self._manifest, other).total_bytes for other in others)
        return int(max(needs, default=0) / 0.85)
