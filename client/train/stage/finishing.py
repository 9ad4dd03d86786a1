"""Leaving the swarm so that nobody has to recover anything.

Every seat hands its work over and closes the step it has counted for; then its worker writes a last
checkpoint. Whoever is the last replica of a stage has a neighbour keep a copy of it. All of that is
bounded: what cannot be done in time is left undone, and the others recover as from a death.
"""

from __future__ import annotations

import trio

from client.train.ports import Ports
from client.train.recovery.buddies import Buddies
from client.train.stage.held_stage import Tenancy
from client.train.stage.held_stages import Staging
from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.seat.parting import Parting, partings

LOOK_S = 0.2
COPY_S = 60.0
"""How long the last replica of a stage waits for its buddy to have a copy."""


class Finishing:
    """Gives up all stages of a volunteer in order."""

    def __init__(self, ports: Ports, me: PeerId, staging: Staging, buddies: Buddies | None) -> None:
        self._ports, self._me, self._staging, self._buddies = ports, me, staging, buddies

    def prepare(self) -> None:
        """Have the workers stay when their seats have left; then the stages may be unassigned."""
        for tenancy in self._staging.tenancies.values():
            tenancy.parting = tenancy.parting or trio.Event()

    async def run(self) -> None:
        """Give up every stage; returns when none is held."""
        costs = {parting.stage: parting for parting in partings(self._staging.view, self._me)}
        async with trio.open_nursery() as nursery:
            for tenancy in list(self._staging.tenancies.values()):
                nursery.start_soon(self._give_up, tenancy, costs.get(tenancy.stage))
        while self._staging.tenancies:
            await trio.sleep(LOOK_S)

    async def _give_up(self, tenancy: Tenancy, cost: Parting | None) -> None:
        if not tenancy.leaving:
            tenancy.leave()
        await self._seat_left(tenancy)
        try:
            await tenancy.save()
            if cost is not None and cost.last and self._buddies is not None:
                await self._leave_a_copy(tenancy, self._buddies)
        finally:
            tenancy.part()

    async def _seat_left(self, tenancy: Tenancy) -> None:
        """Wait until nobody needs the seat; in a swarm that stands still nobody ever will."""
        stages = self._staging
        while tenancy.parting is not None and not tenancy.parting.is_set():
            if stages.tenancies.get(tenancy.stage) is not tenancy:
                return
            if stages.view.empty_stages():
                tenancy.part()
                return
            with trio.move_on_after(LOOK_S):
                await tenancy.parting.wait()

    async def _leave_a_copy(self, tenancy: Tenancy, buddies: Buddies) -> None:
        stage = tenancy.stage
        version = tenancy.saver.saved_version if tenancy.saver is not None else -1
        if version < 1:
            return
        kept = await buddies.hand_over(stage, version, COPY_S)
        where = "a neighbour keeps a copy" if kept else "it lies on this machine's disk only"
        words = f"stage {stage} was left at version {version}: {where}"
        self._ports.perform(Explain("transfer", words, "info" if kept else "warning"))
