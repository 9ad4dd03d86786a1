"""Projects a stage's rates under a plan: samples over the next half hour.

A volunteer serves its old stage until it has fetched the new one, and counts at the new one from
then on (make before break). Pure functions of integers; a fixed number of samples gives all ballots
the same size.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated

from msgspec import Meta, Struct

from protocol.ids import PeerId, Stage
from protocol.matching.bodies import Replicas
from protocol.matching.exchange import load
from protocol.matching.exchange.load import Basis, Load
from protocol.matching.population import Population
from protocol.matching.timing import MAX_SESSION_S

SAMPLES = 16
HORIZON_MS = int(MAX_SESSION_S * 1000)
SAMPLE_TIMES_MS = tuple((2 * k + 1) * HORIZON_MS // (2 * SAMPLES) for k in range(SAMPLES))
"""The middle of each sixteenth of the horizon."""

NEVER_MS = 2**40
Timeline = Annotated[tuple[Load, ...], Meta(min_length=SAMPLES, max_length=SAMPLES)]


class Projection(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A stage's future under a plan."""

    timeline: Timeline
    arriving: Replicas
    leaving: Replicas
    replicas: Replicas
    """At the end."""
    thinnest: Replicas
    """The fewest at any time until then."""


def download_ms(population: Population, peer: PeerId, stage: Stage) -> int:
    """Return the milliseconds ``peer`` needs to fetch ``stage``, by ``population``.

    Returns ``NEVER_MS`` if it cannot fetch it.
    """
    wait_s = population.download_s(peer, stage)
    return int(wait_s * 1000) if wait_s * 1000 < NEVER_MS else NEVER_MS


def project(
    population: Population,
    stage: Stage,
    basis: Basis,
    leaving: Mapping[PeerId, Stage],
    arriving: frozenset[PeerId],
) -> Projection:
    """Return a stage's projection if some of its members leave and others come.

    Args:
        population: the view with rates and download times.
        stage: the stage.
        basis: the stage before any move.
        leaving: its members that leave, with the stage each goes to.
        arriving: members of other stages that come.
    """
    outs = [
        (download_ms(population, peer, to), load.of_member(population, peer, stage))
        for peer, to in leaving.items()
    ]
    ins = [
        (download_ms(population, peer, stage), Load(population.rate(peer, stage)))
        for peer in arriving
    ]
    counts = _counts(basis.replicas, [at for at, _ in ins], [at for at, _ in outs])
    return Projection(
        timeline=tuple(_at(moment, basis.load, ins, outs) for moment in SAMPLE_TIMES_MS),
        arriving=len(ins),
        leaving=len(outs),
        replicas=counts[-1],
        thinnest=min(counts),
    )


def _at(
    moment_ms: int, start: Load, ins: list[tuple[int, Load]], outs: list[tuple[int, Load]]
) -> Load:
    come = load.total(part for at, part in ins if at <= moment_ms)
    return start.plus(come).minus(load.total(part for at, part in outs if at <= moment_ms))


def _counts(replicas: int, ins: list[int], outs: list[int]) -> list[int]:
    """Return the number of replicas after every arrival and departure, arrivals first."""
    events = sorted([(at, -1) for at in ins] + [(at, 1) for at in outs])
    return list(accumulate((-minus for _, minus in events), initial=replicas))
