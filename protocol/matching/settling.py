"""Actions of a stage once all stages are quiet: help the neediest one, or detect the end.

Pure functions of the pool, the others' postings and the population. Helping never lowers the lowest
stage: a volunteer is released only if the stage stays better off than the needy one was. The sorted
standings therefore rise with every step, and the process ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.ids import Stage
from protocol.matching.board import Notice
from protocol.matching.gain import Standing
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


def somebody_waits(pool: Pool, others: Others, population: Population) -> bool:
    """Tell whether a rejected peer is still without a place, and this stage could give one.

    Args:
        pool: of this stage.
        others: the other stages' postings.
        population: the members.
    """
    placed = len(pool.homes) + sum(notice.posting.replicas for notice in others.values())
    wanting = pool.level < population.fair_level
    return pool.limits.cutoff > 0 and wanting and placed < population.able


def help_neediest(pool: Pool, others: Others, population: Population) -> list[HeldPlace]:
    """Tighten q to 1.0 if a stage is below it, else release newcomers for the neediest stage.

    As many as bring it to the mean, of the best-off stages first; the released places are returned,
    have left the pool, and the cutoff is above their scores.

    Args:
        pool: of this stage; it is changed.
        others: the other stages' postings.
        population: the members.
    """
    r = population.redundancy
    mine = pool.standing(r)
    standings = {stage: _standing(notice, r) for stage, notice in others.items()}
    worse_off = [stage for stage in standings if standings[stage] < mine]
    if any(standings[stage] < Standing(r, population.fair_level) for stage in worse_off):
        pool.tighten(population)
        let_go = pool.choose()
        if let_go:
            return let_go
    last = pool.last_newcomer
    helpable = [s for s in worse_off if last and population.rate(last.peer, s)]
    if last is None or not helpable:
        return []
    needy = min(helpable, key=lambda stage: (standings[stage], stage))
    able = pool.spare(needy, standings[needy], population)
    if not able:
        return []
    gap = (pool.level + sum(s.level for s in standings.values())) // len(population.costs)
    wanted = max(1, -((standings[needy].level - gap) // population.rate(last.peer, needy)))
    donors = 1 + sum(standing > standings[needy] for standing in standings.values())
    ahead = sum((standings[s], -s) > (mine, -pool.stage) for s in standings)
    share = -(-(wanted - ahead) // donors)
    return pool.let_go(able[:share]) if share > 0 else []


def _standing(notice: Notice, r: int) -> Standing:
    return Standing.of(notice.posting.copies, notice.posting.level, r)
