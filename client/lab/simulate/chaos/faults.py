"""Injects faults into the world, as far as its configuration permits them."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from client.lab.simulate.chaos.links import Trick
from client.lab.simulate.chaos.schedule import Fault
from client.lab.simulate.chaos.swarm import ChaosSwarm
from client.lab.simulate.chaos.volunteer import Volunteer
from protocol.rounds.member import Progress
from protocol.seat.seat import Seat

AIM_S: Final = 4.0
"""Longest wait of a fault for the message whose sender it strikes; then it takes any victim."""


class Faults:
    """Strikes the world; counts by kind the faults injected (``done``) and those not permitted.

    A trick counts when it has been played on a message, not before.
    """

    def __init__(self, swarm: ChaosSwarm, schedule: Sequence[Fault]) -> None:
        self._swarm, self._schedule = swarm, schedule
        self.done: Counter[str] = Counter()
        self.forbidden: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        """What those were doing that were taken from the swarm."""
        self.tricks: Counter[str] = Counter()
        """By name of the message on which they were played."""
        self.total = 0
        self._aimed: list[Fault] = []
        self._splits = 0
        self._ended = False

    @property
    def over(self) -> bool:
        """Whether no faults are left."""
        last = self._schedule[-1].at if self._schedule else 0.0
        enough = self.total >= self._swarm.config.faults
        return enough or self._swarm.agenda.now >= last + AIM_S

    def meet(self, fault: Fault) -> None:
        """A fault is due."""
        if not fault.aimed:
            self.strike(fault)
        else:
            self._aimed.append(fault)
            self._swarm.agenda.after(AIM_S, partial(self._miss, fault))

    def said(self, sender: Volunteer, kind: str) -> None:
        """A message was sent: a fault that was waiting for that strikes before it arrives."""
        for fault in self._aimed:
            if fault.message == kind:
                self._aimed.remove(fault)
                self._swarm.agenda.after(0.0, partial(self.strike, fault, sender))
                return

    def _miss(self, fault: Fault) -> None:
        if fault in self._aimed:
            self._aimed.remove(fault)
            self.strike(fault)

    def strike(self, fault: Fault, victim: Volunteer | None = None) -> bool:
        """Inject a fault, if it is permitted now."""
        if self._ended or self.total >= self._swarm.config.faults:
            return False
        done = self._strike(fault, victim or self._pick(fault))
        if not done:
            self.forbidden[fault.kind] += 1
        elif fault.kind != "message":
            self._count(fault.kind)
        return done

    def _count(self, kind: str) -> None:
        self.done[kind] += 1
        self.total += 1
        if self.total >= self._swarm.config.faults:
            self._swarm.network.calm()

    def _played(self, message: str) -> None:
        self.tricks[message] += 1
        self._count("message")

    def _strike(self, fault: Fault, victim: Volunteer) -> bool:
        network, now = self._swarm.network, self._swarm.agenda.now
        match fault.kind:
            case "message":
                network.play(
                    Trick(fault.trick, fault.message, partial(self._played, fault.message))
                )
            case "storm":
                other = self._pick(fault, skip=1)
                network.storm(frozenset({victim.peer, other.peer}), now + fault.span_s)
            case "tensor":
                victim.corrupt += 1
            case "clock":
                victim.clock.set_rate(fault.rate, now)
            case "split":
                self._split(fault, victim)
            case "crash" | "wipe" | "replace" | "pause" | "worker":
                return self._take_one(fault, victim)
        self._swarm.note(victim, f"meets {fault.kind} {fault.trick} {fault.message}")
        return True

    def _pick(self, fault: Fault, skip: int = 0) -> Volunteer:
        present = self._swarm.present()
        return present[(fault.who + skip) % len(present)]

    # --- the network -----------------------------------------------------------------------

    def _split(self, fault: Fault, victim: Volunteer) -> None:
        swarm = self._swarm
        side = {
            volunteer.peer: (fault.who >> (2 + volunteer.stage)) & 1
            for volunteer in swarm.volunteers.values()
        }
        if len(set(side.values())) < 2:
            with_it = [v for v in swarm.volunteers.values() if v.stage == victim.stage]
            side.update({v.peer: 1 - side[v.peer] for v in with_it})
        self._splits += 1
        swarm.network.split(side, lossy=fault.lossy)
        sides = "".join(str(n) for n in side.values())
        swarm.note(victim, f"sees the network split: {sides}")
        swarm.agenda.after(fault.span_s, partial(self._heal, self._splits))

    def _heal(self, split: int) -> None:
        if split == self._splits:
            self._swarm.network.heal()

    # --- volunteers ------------------------------------------------------------------------

    def _may_take(self, victim: Volunteer) -> bool:
        """Whether the stage continues without the victim: one replica of each always serves."""
        others = [v for v in self._swarm.honest() if v.stage == victim.stage and v != victim]
        return any(_stands_in(other, victim) for other in others) or not victim.holds_state

    def _may_go_for_good(self, victim: Volunteer) -> bool:
        """Whether a majority of every volunteer's electors comes back in any case: members whose
        leaving nobody saw stay electors (protocol/SPEC.md, section 20)."""
        swarm = self._swarm
        for volunteer in swarm.present():
            seat = volunteer.seat
            known = frozenset() if seat is None else seat.quorum.electors
            there = (swarm.volunteers[p] for p in known & swarm.volunteers.keys())
            stay = [v for v in there if v is not victim and not v.retired]
            if known and 2 * len(stay) <= len(known):
                return False
        return True

    def _is_remembered(self, victim: Volunteer) -> bool:
        """Whether most disks but the victim's know its lineage: a run that most have forgotten
        restarts from the seed, and in one in which most have never closed a step nobody is trusted
        (protocol/SPEC.md, section 20)."""
        swarm, era, present = self._swarm, victim.disk.lineage.era, self._swarm.present()
        others = [v for v in present if v is not victim and _follows(v, era)]
        if swarm.config.lies:
            seasoned = [v for v in others if v.disk.evidence.stages and not v.lies]
            return 2 * len(seasoned) > len(present)
        return 2 * len(others) > len(present)

    def _is_followed(self, victim: Volunteer) -> bool:
        """Whether another has heard of the victim's lineage: a volunteer that rolls back alone and
        leaves before that has its undone steps repeated by others (protocol/SPEC.md, section
        20)."""
        era, present = victim.disk.lineage.era, self._swarm.present()
        return any(_follows(v, era) for v in present if v is not victim)

    def _take_one(self, fault: Fault, victim: Volunteer) -> bool:
        """Take the victim, or the next one that may be taken."""
        present = self._swarm.present()
        first = present.index(victim) if victim in present else 0
        others = [v for v in present[first + 1 :] + present[:first] if v.seat is not None]
        return any(self._take(fault, other) for other in [victim, *others])

    def _take(self, fault: Fault, victim: Volunteer) -> bool:
        swarm = self._swarm
        if not victim.running or not self._may_take(victim):
            return False
        if victim.lies and fault.kind == "replace":
            return False
        if fault.kind == "worker" and victim.seat is None:
            return False
        if not self._is_followed(victim):
            return False
        if fault.kind in ("wipe", "replace") and not self._is_remembered(victim):
            return False
        if fault.kind == "replace" and not self._may_go_for_good(victim):
            return False
        self.phases[phase_of(victim)] += 1
        after = partial(swarm.agenda.after, fault.span_s)
        match fault.kind:
            case "pause":
                swarm.pause(victim)
                after(partial(swarm.wake, victim, victim.incarnation))
            case "worker":
                swarm.note(victim, "loses its worker")
                swarm.lose(victim, "the worker died")
            case _:
                swarm.crash(victim, wipe=fault.kind != "crash")
                if fault.kind == "replace":
                    victim.retired = True
                    after(partial(swarm.replace, victim))
                else:
                    after(partial(swarm.start, victim))
        return True

    def end(self) -> None:
        """End all faults: no tricks, one network, all volunteers running."""
        swarm = self._swarm
        self._ended = True
        swarm.network.calm()
        self._splits += 1
        swarm.network.heal()
        for volunteer in list(swarm.volunteers.values()):
            volunteer.corrupt = 0
            if volunteer.retired:
                swarm.replace(volunteer)
            elif volunteer.paused:
                swarm.wake(volunteer, volunteer.incarnation)
            elif not volunteer.alive:
                swarm.start(volunteer)


def _follows(other: Volunteer, era: int) -> bool:
    return not other.lies and other.disk.lineage.era >= era


def _stands_in(other: Volunteer, victim: Volunteer) -> bool:
    """Whether another replica of the victim's lineage has, or is about to have, every version that
    it has or is making."""
    mine, theirs = victim.seat, other.seat
    if (
        mine is None
        or theirs is None
        or not other.holds_state
        or theirs.place.era != mine.place.era
    ):
        return False
    makes = _applies(theirs) or bool(theirs.member.ready)
    return theirs.step + makes >= mine.step + _applies(mine)


def _applies(seat: Seat) -> bool:
    return seat.member.progress is Progress.APPLYING


def phase_of(volunteer: Volunteer) -> str:
    """Return a volunteer's activity in one word."""
    seat = volunteer.seat
    if seat is None:
        return "taking"
    if not seat.serving:
        return "fetching"
    progress = seat.member.progress
    if progress is not Progress.WAITING:
        return str(progress.value)
    return "working" if seat.pipeline.in_flight() else "idle"
