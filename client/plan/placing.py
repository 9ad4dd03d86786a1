"""Assigns machines to stages: a centralised approximation of the matching's result.

Coverage before redundancy before throughput (the matching's property 5): every machine, those that
fit few stages first and then the fast ones, goes to the stage with the fewest replicas below r,
else with the lowest rate (longest processing time first; Graham 1969). Then single moves and
exchanges raise the lowest stage while possible. For few machines all placements are tried instead.
Each machine gets one stage; the client's second seats even out the levels further.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from client.plan.machines import Machine, StageWork
from protocol.limits import MAX_REPLICAS_IN_ROUND

MOST_EXCHANGES = 200
SEARCHED_MACHINES = 128
"""With more machines, which even out by their number, exchanges are skipped."""
MOST_TRIED = 4096
"""The most placements for which all are tried."""
LEAST_GAIN = 1 + 1e-9


def place(
    machines: Sequence[Machine], stages: Sequence[StageWork], redundancy: int
) -> list[list[Machine]] | None:
    """Return the replicas of every stage; None if a stage cannot have one.

    Machines beyond ``MAX_REPLICAS_IN_ROUND`` per stage are left out.

    Args:
        machines: the volunteers.
        stages: work of every stage, in order.
        redundancy: replicas that every stage should have before rates count.
    """
    placing = _Placing(stages, redundancy)
    kinds = Counter(stages)
    order = sorted(machines, key=lambda machine: _choice(machine, kinds))
    for machine in order:
        placing.add(machine)
    if not all(placing.members):
        return None
    few = len(stages) ** len(machines) <= MOST_TRIED
    if few and (best := _best_of_all(machines, stages, redundancy)) is not None:
        return best
    if len(machines) <= SEARCHED_MACHINES:
        placing.improve()
    return placing.members


def _choice(machine: Machine, kinds: Mapping[StageWork, int]) -> tuple[int, float]:
    """Return a sort key: the stages that the machine fits, then its best rate, highest first."""
    fits = sum(count for work, count in kinds.items() if work.fits(machine))
    return fits, -max(work.rate(machine) for work in kinds)


def _best_of_all(
    machines: Sequence[Machine], stages: Sequence[StageWork], redundancy: int
) -> list[list[Machine]] | None:
    """Return the placement with the most redundancy, then the highest lowest rate; None if not all
    machines can be placed."""
    rates = [[work.rate(machine) for work in stages] for machine in machines]
    most = MAX_REPLICAS_IN_ROUND
    best, chosen = (0, 0.0), None
    for seats in itertools.product(range(len(stages)), repeat=len(machines)):
        levels, counts = [0.0] * len(stages), [0] * len(stages)
        for stage, rate in zip(seats, rates, strict=True):
            levels[stage] += rate[stage]
            counts[stage] += 1
        if min(counts) == 0 or max(counts) > most:
            continue
        if any(rate[stage] <= 0 for stage, rate in zip(seats, rates, strict=True)):
            continue
        reached = sum(min(count, redundancy) for count in counts), min(levels)
        if reached > best:
            best, chosen = reached, seats
    if chosen is None:
        return None
    placed: list[list[Machine]] = [[] for _ in stages]
    for stage, machine in zip(chosen, machines, strict=True):
        placed[stage].append(machine)
    return placed


class _Placing:
    """A placement under construction, with the stages' rates."""

    def __init__(self, stages: Sequence[StageWork], redundancy: int) -> None:
        self.members: list[list[Machine]] = [[] for _ in stages]
        self._stages, self._redundancy = stages, redundancy
        self._levels = [0.0] * len(stages)
        self._kinds = list(dict.fromkeys(stages))
        """Distinct kinds of work; most stages are alike."""
        self._kind = [self._kinds.index(work) for work in stages]

    def add(self, machine: Machine) -> None:
        """Assign a machine to the stage that needs it most; skip it if it fits none."""
        rates = [work.rate(machine) for work in self._kinds]
        open_to = [
            stage
            for stage, kind in enumerate(self._kind)
            if rates[kind] > 0 and len(self.members[stage]) < MAX_REPLICAS_IN_ROUND
        ]
        if open_to:
            self._put(machine, min(open_to, key=self._need))

    def improve(self) -> None:
        """Raise the lowest stage by moves and exchanges until none helps."""
        for _ in range(MOST_EXCHANGES):
            if not self._lift(min(range(len(self._levels)), key=self._levels.__getitem__)):
                return

    def _need(self, stage: int) -> tuple[int, float]:
        return min(len(self.members[stage]), self._redundancy), self._levels[stage]

    def _put(self, machine: Machine, stage: int) -> None:
        self.members[stage].append(machine)
        self._levels[stage] += self._stages[stage].rate(machine)

    def _take(self, machine: Machine, stage: int) -> None:
        self.members[stage].remove(machine)
        self._levels[stage] = sum(map(self._stages[stage].rate, self.members[stage]))

    def _lift(self, low: int) -> bool:
        """Make the best move or exchange with the lowest stage; return whether there was one."""
        best = self._levels[low] * LEAST_GAIN
        chosen: tuple[int, Machine, Machine | None] | None = None
        for stage in range(len(self._stages)):
            if stage == low:
                continue
            for comes in dict.fromkeys(self.members[stage]):
                for goes in self._in_return(stage, low):
                    reached = self._after(stage, low, comes, goes)
                    if reached > best:
                        best, chosen = reached, (stage, comes, goes)
        if chosen is None:
            return False
        stage, comes, goes = chosen
        self._take(comes, stage)
        if goes is not None:
            self._take(goes, low)
            self._put(goes, stage)
        self._put(comes, low)
        return True

    def _in_return(self, stage: int, low: int) -> list[Machine | None]:
        exchanges: list[Machine | None] = list(dict.fromkeys(self.members[low]))
        spare = len(self.members[stage]) > max(1, self._redundancy)
        if spare and len(self.members[low]) < MAX_REPLICAS_IN_ROUND:
            exchanges.append(None)
        return exchanges

    def _after(self, stage: int, low: int, comes: Machine, goes: Machine | None) -> float:
        """Return the lower of both rates after a move; -1 if a machine would not fit."""
        there, here = self._stages[stage], self._stages[low]
        gain, loss = here.rate(comes), there.rate(comes)
        back = there.rate(goes) if goes else 0.0
        if gain <= 0 or (goes is not None and back <= 0):
            return -1.0
        reached = self._levels[low] + gain - (here.rate(goes) if goes else 0.0)
        return min(reached, self._levels[stage] - loss + back)
