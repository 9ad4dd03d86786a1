"""Leaves the swarm so that nobody has to recover anything.

Every stage is drained: its seat hands its work over and closes the step it has counted for; then
its worker writes a last checkpoint. The last replica of a stage has a neighbour keep a copy. All of
it is bounded in time: if it is not finished, the others recover as after a crash. Only a state that
nobody else has and the disk does not take stays in memory until it does, or the user gives it up.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from client.train.ports import Ports
from client.train.recovery.buddies import Buddies
from client.train.stage.held_stages import HeldStages
from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.seat.drain_cost import drain_costs

LOOK_S = 0.2
FINISH_S: Final = 240.0
"""For draining, saving, and a copy elsewhere; each of these is bounded, too."""
COPY_S = 60.0
"""Longest wait of a stage's last replica for its buddy's copy."""


class DrainAll:
    """Gives up all stages of a volunteer in order."""

    def __init__(
        self, ports: Ports, me: PeerId, held_stages: HeldStages, buddies: Buddies | None
    ) -> None:
        self._ports, self._me, self._held_stages, self._buddies = ports, me, held_stages, buddies

    def prepare(self) -> None:
        """Have the state of every stage saved; then the matching may take the stages away."""
        alone = {cost.stage for cost in drain_costs(self._held_stages.view, self._me) if cost.last}
        for stage, held in self._held_stages.held.items():
            copied = stage in alone and self._buddies is not None
            held.save_when_drained(partial(self._leave_a_copy, stage) if copied else None)

    async def run(self) -> None:
        """Give up every stage; returns when none is held, at the latest after ``FINISH_S``, but
        for a state that would be lost because it cannot be saved."""
        latest = trio.current_time() + FINISH_S
        for held in list(self._held_stages.held.values()):
            held.drain()
        while self._held_stages.held:
            if trio.current_time() > latest and not self._held_stages.keeps:
                return
            if self._held_stages.view.empty_stages():
                for held in list(self._held_stages.held.values()):
                    held.stand_still()
            await trio.sleep(LOOK_S)

    async def _leave_a_copy(self, stage: int, version: int) -> None:
        if self._buddies is None:
            return
        kept = await self._buddies.hand_over(stage, version, COPY_S)
        where = "a neighbour keeps a copy" if kept else "only this machine's disk has it"
        words = f"left stage {stage} at version {version}: {where}"
        self._ports.perform(Explain("transfer", words, "info" if kept else "warning"))
