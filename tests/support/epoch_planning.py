"""A full epoch in one process: the reference that the distributed one must equal. Pure functions.

Deferred acceptance among serving volunteers, then the quota ladder with the commit rule. A
volunteer placed at another stage moves; one without a place stays at home.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from client.lab.simulate.market.stability import Instance
from protocol.ids import PeerId, Stage
from protocol.matching.exchange import load, wishes
from protocol.matching.exchange.load import Basis
from protocol.matching.exchange.projection import project
from protocol.matching.exchange.verdict import StagePlan, Verdict, judge
from protocol.matching.exchange.wishes import LADDER_PERCENT, Terms
from protocol.matching.population import Population
from tests.support.synchronous_matching import deferred_acceptance

Homes = Mapping[PeerId, Stage]


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan: each volunteer's move, and the effect on every stage."""

    moves: Mapping[PeerId, Stage]
    stages: tuple[StagePlan, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an epoch: the adopted plan's quota and moves, or None and no moves."""

    quota_percent: int | None
    moves: Mapping[PeerId, Stage]
    verdicts: tuple[Verdict, ...]


def bases(population: Population, homes: Homes) -> tuple[Basis, ...]:
    """Return every stage as it is, given each volunteer's home."""
    return tuple(
        Basis(
            load.total(load.of_member(population, peer, Stage(s)) for peer in staff),
            len(staff) + len(population.seconds(Stage(s))),
        )
        for s in population.stages
        for staff in [[peer for peer, home in homes.items() if home == s]]
    )


def fair_level(stages: Sequence[Basis]) -> int:
    """Return lambda of an epoch: the mean level."""
    return sum(stage.load.level for stage in stages) // len(stages)


def instance(
    population: Population, homes: Homes, fetching: frozenset[PeerId], terms: Terms
) -> Instance:
    """Return the matching problem of an epoch.

    Args:
        population: the view with its rates.
        homes: each volunteer's home.
        fetching: volunteers that still fetch; they are locked at home.
        terms: quota, lambda and r.
    """
    stages = bases(population, homes)
    lists = {
        peer: (home,)
        if peer in fetching
        else wishes.ranked(population, peer, home, stages, terms.r)
        for peer, home in homes.items()
    }
    offers = {
        (peer, stage): replace(
            wishes.offer(population, peer, stage, terms.fair), locked=peer in fetching
        )
        for peer, wanted in lists.items()
        for stage in wanted
    }
    return Instance(lists, offers, {Stage(s): terms.limits for s in population.stages})


def plan(
    population: Population,
    homes: Homes,
    terms: Terms,
    fetching: frozenset[PeerId] = frozenset(),
) -> Plan:
    """Return the plan at one quota, with the verdict on it.

    Args:
        population: the view with its rates.
        homes: each volunteer's home.
        terms: quota, lambda and r.
        fetching: volunteers that still fetch; they are locked at home.
    """
    placed = deferred_acceptance(instance(population, homes, fetching, terms))
    moves = {peer: to for peer, to in placed.items() if to is not None and to != homes[peer]}
    stages = tuple(
        StagePlan(
            basis,
            project(
                population,
                Stage(s),
                basis,
                {peer: to for peer, to in moves.items() if homes[peer] == s},
                frozenset(peer for peer, to in moves.items() if to == s),
            ),
        )
        for s, basis in enumerate(bases(population, homes))
    )
    return Plan(moves, stages, judge(stages, terms.r, population.design))


def full_epoch(
    population: Population, homes: Homes, fetching: frozenset[PeerId] = frozenset()
) -> Outcome:
    """Return the outcome of a full epoch: the first plan of the ladder that pays.

    Args:
        population: the view with its rates.
        homes: each volunteer's home.
        fetching: volunteers that still fetch; they are locked at home.
    """
    fair = fair_level(bases(population, homes))
    verdicts: list[Verdict] = []
    for percent in LADDER_PERCENT:
        found = plan(population, homes, Terms(percent, fair, population.redundancy), fetching)
        verdicts.append(found.verdict)
        if found.verdict.adopted:
            return Outcome(percent, found.moves, tuple(verdicts))
    return Outcome(None, {}, tuple(verdicts))
