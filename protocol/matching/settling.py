"""Actions of a stage once all stages are quiet: help one that lacks replicas, or detect the end.

Pure functions of the pool, the others' postings and the population. A stage that helps keeps r
replicas, and its cutoff rises, so the process ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.ids import Stage
from protocol.matching.board import Notice
from protocol.matching.pool import HeldPlace, Pool
from protocol.matching.population import Population

Others = Mapping[Stage, Notice]
"""The postings of the other stages."""


def complete(others: Others, population: Population) -> bool:
    """Tell whether every other stage has a steward."""
    return len(others) == len(population.costs) - 1


def all_reached(others: Others, phase: int, population: Population) -> bool:
    """Tell whether every stage of ``population`` but ours (``others``) has reached ``phase``."""
    reached = all(notice.posting.phase >= phase for notice in others.values())
    return reached and complete(others, population)


def all_covered(pool: Pool, others: Others, population: Population) -> bool:
    """Tell whether every stage of ``population``, ours (``pool``) and ``others``, has a replica."""
    covered = all(notice.posting.copies for notice in others.values())
    return bool(pool.places) and covered and complete(others, population)


def help_needy(pool: Pool, others: Others, population: Population) -> list[HeldPlace]:
    """Release the least preferred newcomer of a stage with more than r replicas if others lack any.

    As many stages give one as replicas are missing, those with most replicas first.
    """
    r = population.redundancy
    copies = {stage: notice.posting.copies for stage, notice in others.items()}
    lacking = [stage for stage in copies if copies[stage] < r]
    last = pool.last_newcomer
    if last is None or not any(population.rate(last.peer, stage) for stage in lacking):
        return []
    mine = (len(pool.places), pool.level, -pool.stage)
    ahead = sum((copies[s], others[s].posting.level, -s) > mine for s in others)
    missing = sum(r - copies[stage] for stage in lacking)
    return [pool.give(last)] if len(pool.places) > r and ahead < missing else []
