"""Deals machines out to stages as the matching would.

Coverage comes before redundancy, and redundancy before throughput: every machine, those that fit
few stages first and then the fast ones, goes to the stage with the fewest replicas below the wanted
ones, else to the one with the lowest rate (longest processing time first; Graham 1969). Groups of
equal machines are dealt out evenly by that. Each machine gets one stage; the client's second seats
even out the rates further.
"""

from __future__ import annotations

from collections.abc import Sequence

from client.plan.machines import Machine, StageWork
from protocol.limits import MAX_REPLICAS_IN_ROUND


def place(
    machines: Sequence[Machine], stages: Sequence[StageWork], redundancy: int
) -> list[list[Machine]] | None:
    """Return the replicas of every stage; None if a stage cannot have one.

    Machines that fit no stage, and those beyond ``MAX_REPLICAS_IN_ROUND`` per stage, are left out.

    Args:
        machines: the volunteers.
        stages: work of every stage, in order.
        redundancy: replicas that every stage should have before rates count.
    """
    rates = {each: [work.rate(each) for work in stages] for each in dict.fromkeys(machines)}
    members: list[list[Machine]] = [[] for _ in stages]
    levels = [0.0] * len(stages)

    def choice(machine: Machine) -> tuple[int, float]:
        return sum(rate > 0 for rate in rates[machine]), -max(rates[machine])

    def need(stage: int) -> tuple[int, float]:
        return min(len(members[stage]), redundancy), levels[stage]

    for machine in sorted(machines, key=choice):
        open_to = [
            stage
            for stage, rate in enumerate(rates[machine])
            if rate > 0 and len(members[stage]) < MAX_REPLICAS_IN_ROUND
        ]
        if open_to:
            stage = min(open_to, key=need)
            members[stage].append(machine)
            levels[stage] += rates[machine][stage]
    return members if all(members) else None
