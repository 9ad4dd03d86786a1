"""Actions of a stage once all stages are quiet: help the neediest one, or detect the end.

Pure functions of the pool, the others' postings and the population. Helping never lowers the lowest
stage: a volunteer is released only if the stage stays better off than the needy one was. The sorted
standings therefore rise with every step, and the process ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.ids import Stage
from protocol.matching.board import Notice
from protocol.matching.bodies import SETTLED
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


@dataclass(frozen=True, slots=True)
class Help:
    """The outcome of one attempt; ``waiting``: better-off stages must give first."""

    let_go: list[HeldPlace]
    waiting: bool = False


NOTHING = Help([])


def help_neediest(pool: Pool, others: Others, population: Population) -> Help:
    """Tighten q to 1.0 if a stage is below it, else release newcomers for the neediest stage.

    Released places have left the pool, and the cutoff is above their scores.

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
            return Help(let_go)
    last = pool.last_newcomer
    helpable = [s for s in worse_off if last and population.rate(last.peer, s)]
    if last is None or not helpable:
        return NOTHING
    needy = min(helpable, key=lambda stage: (standings[stage], stage))
    able = pool.spare(needy, standings[needy], population)
    if not able:
        return NOTHING
    gap = (pool.level + sum(s.level for s in standings.values())) // len(population.costs)
    wanted = max(1, -((standings[needy].level - gap) // population.rate(last.peer, needy)))
    share = _share(wanted, (mine, -pool.stage), _other_donors(others, standings[needy], r))
    return Help(pool.let_go(able[:share])) if share else Help([], waiting=True)


Rank = tuple[Standing, int]
"""Donors in order: the best-off first, the lower stage among equals."""


def _other_donors(others: Others, low: Standing, r: int) -> list[Rank]:
    """Return the stages that may still give; a settled stage cannot."""
    return [
        (_standing(notice, r), -stage)
        for stage, notice in others.items()
        if notice.posting.phase < SETTLED
        and notice.posting.locked_replicas < notice.posting.replicas
        and _standing(notice, r) > low
    ]


def _share(wanted: int, mine: Rank, donors: list[Rank]) -> int:
    """Return how many of the wanted members we give; better-off stages give first."""
    ahead = sum(donor > mine for donor in donors)
    each, rest = divmod(wanted, len(donors) + 1)
    return each + (ahead < rest)


def _standing(notice: Notice, r: int) -> Standing:
    return Standing.of(notice.posting.copies, notice.posting.level, r)
