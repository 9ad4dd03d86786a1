"""What a stage does once all stages are quiet: help the neediest one, or see that it is done.

Pure functions of the pool, the others' postings and the population. Helping never makes the lowest
stage lower: somebody is let go only if the stage stays better off than the needy one was, so the
sorted standings rise with every step and the steps end.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.ids import Stage
from protocol.matching.board import Notice, Standing
from protocol.matching.pool import Place, Pool
from protocol.matching.population import Population

Others = Mapping[Stage, Notice]
"""The postings of the other stages."""


def complete(others: Others, population: Population) -> bool:
    """Tell whether every other stage has somebody to speak for it."""
    return len(others) == len(population.costs) - 1


def all_reached(others: Others, phase: int, population: Population) -> bool:
    """Tell whether every other stage has come to a phase."""
    reached = all(notice.posting.phase >= phase for notice in others.values())
    return reached and complete(others, population)


def all_covered(pool: Pool, others: Others, population: Population) -> bool:
    """Tell whether every stage has a replica."""
    covered = all(notice.posting.replicas for notice in others.values())
    return bool(pool.places) and covered and complete(others, population)


def somebody_waits(pool: Pool, others: Others, population: Population) -> bool:
    """Tell whether a peer turned away is still without a place that this stage could give."""
    placed = len(pool.places) + sum(notice.posting.replicas for notice in others.values())
    wanting = pool.level < population.fair_level
    return pool.limits.cutoff > 0 and wanting and placed < population.able


def help_neediest(pool: Pool, others: Others, population: Population) -> list[Place]:
    """Tighten q to 1.0 if a stage falls short of it, else spare newcomers; return who was let go.

    Places that are let go have left the pool, and the cutoff stands above them.
    """
    r = population.redundancy
    standings = {stage: _standing(notice, r) for stage, notice in others.items()}
    better_off = [stage for stage in standings if standings[stage] < pool.standing(r)]
    if any(standings[stage] < Standing(r, population.fair_level) for stage in better_off):
        pool.tighten(population)
        let_go = pool.choose()
        if let_go:
            return let_go
    last = pool.last_newcomer
    helpable = [s for s in better_off if last and population.rate(last.peer, s)]
    if not helpable:
        return []
    needy = min(helpable, key=lambda stage: (standings[stage], stage))
    donors = 1 + sum(
        standings[stage] > standings[needy]
        and notice.posting.locked_replicas < notice.posting.replicas
        for stage, notice in others.items()
    )
    spare = pool.spare(needy, standings[needy], donors, population)
    return pool.let_go(spare) if spare else []


def _standing(notice: Notice, r: int) -> Standing:
    return Standing.of(notice.posting.replicas, notice.posting.level, r)
