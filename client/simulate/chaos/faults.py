"""Faults, done to the world: what each kind means, and which ones its configuration permits now."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from client.simulate.chaos.links import Trick
from client.simulate.chaos.schedule import Fault
from client.simulate.chaos.volunteer import Volunteer

if TYPE_CHECKING:
    from client.simulate.chaos.world import ChaosWorld


class Faults:
    """Strikes the world; counts by kind what was done (``done``) and what was not permitted."""

    def __init__(self, world: ChaosWorld) -> None:
        self._world = world
        self.done: Counter[str] = Counter()
        self.forbidden: Counter[str] = Counter()
        self._taken_at = float("-inf")
        self._splits = 0

    def strike(self, fault: Fault) -> bool:
        """Do a fault, unless it is not permitted now."""
        done = self._strike(fault)
        (self.done if done else self.forbidden)[fault.kind] += 1
        return done

    def _strike(self, fault: Fault) -> bool:
        network, now = self._world.network, self._world.agenda.now
        victim = self._pick(fault)
        match fault.kind:
            case "message":
                network.play(Trick(fault.trick, fault.message))
            case "storm":
                other = self._pick(fault, skip=1)
                network.storm(frozenset({victim.peer, other.peer}), now + fault.span_s)
            case "tensor":
                victim.corrupt += 1
            case "clock":
                victim.clock.set_rate(fault.rate, now)
            case "split":
                return self._split(fault)
            case "crash" | "wipe" | "replace" | "pause" | "worker":
                return self._take(fault, victim)
        self._world.note(victim, f"meets {fault.kind} {fault.trick} {fault.message}")
        return True

    def _pick(self, fault: Fault, skip: int = 0) -> Volunteer:
        present = self._world.present()
        return present[(fault.who + skip) % len(present)]

    # --- the network -----------------------------------------------------------------------

    def _split(self, fault: Fault) -> bool:
        world = self._world
        if world.network.is_split:
            return False
        through = world.config.splits_stages and fault.who % 3
        side = {
            volunteer.peer: (fault.who >> (2 + (index if through else volunteer.stage))) & 1
            for index, volunteer in enumerate(world.volunteers.values())
        }
        if len(set(side.values())) < 2:
            return False
        self._splits += 1
        world.network.split(side, lossy=fault.lossy)
        sides = "".join(str(n) for n in side.values())
        world.note(self._pick(fault), f"sees the network split: {sides}")
        world.agenda.after(fault.span_s, partial(self._heal, self._splits))
        return True

    def _heal(self, split: int) -> None:
        if split == self._splits:
            self._world.network.heal()

    # --- volunteers ------------------------------------------------------------------------

    def _may_take(self, victim: Volunteer) -> bool:
        """Whether the stage goes on without the victim, as far as the configuration demands."""
        world, config = self._world, self._world.config
        if world.agenda.now < self._taken_at + config.calm_s:
            return False
        others = [v for v in world.volunteers.values() if v.stage == victim.stage and v != victim]
        holders = sum(_stands_in(other, victim) for other in others)
        return holders >= config.spares or not victim.holds_state

    def _take(self, fault: Fault, victim: Volunteer) -> bool:
        world = self._world
        if not victim.running or not self._may_take(victim):
            return False
        self._taken_at = world.agenda.now
        after = partial(world.agenda.after, fault.span_s)
        match fault.kind:
            case "pause":
                world.pause(victim)
                after(partial(world.wake, victim, victim.incarnation))
            case "worker":
                if victim.seat is None:
                    return False
                world.note(victim, "loses its worker")
                world.retake(victim, "the worker died")
            case _:
                world.crash(victim, wipe=fault.kind != "crash")
                if fault.kind == "replace":
                    victim.retired = True
                    after(partial(world.replace, victim))
                else:
                    after(partial(world.start, victim))
        return True

    def end(self) -> None:
        """Everything works again: no tricks, one network, everybody up and awake."""
        world = self._world
        world.network.calm()
        self._splits += 1
        world.network.heal()
        for volunteer in list(world.volunteers.values()):
            volunteer.corrupt = 0
            if volunteer.retired:
                world.replace(volunteer)
            elif volunteer.paused:
                world.wake(volunteer, volunteer.incarnation)
            elif not volunteer.alive:
                world.start(volunteer)


def _stands_in(other: Volunteer, victim: Volunteer) -> bool:
    """Whether another replica has, or is about to have, every version that the victim has."""
    mine, theirs = victim.seat, other.seat
    if mine is None or theirs is None or not other.holds_state:
        return False
    return theirs.step + theirs.member.knows_commit >= mine.step
