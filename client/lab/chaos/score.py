"""One number for a pair of runs: the Resilience Score, with its weights and scales stated. Pure.

After the survey's RS = w1 / RPO + w2 / RTO + w3 / ElasticityOverhead + w4 PerformanceUnderJitter +
w5 PreemptionResilience. The first three have no bound and divide by zero when nothing is lost, so
each is counted as one more than it is, which makes every term a share between 0 and 1:

    RPO  1 + mean steps rolled back per fault
    RTO  1 + median seconds until the first gradient by another way
    EO   1 + mean seconds of throughput that a join and a leave cost
    PUJ  tokens/s under jitter / without, at most 1
    PR   goodput / goodput of the present volunteers without faults, at most 1

A term that was not measured is left out and the weights of the others are scaled up, so that a
score of 1 always means: no cost was seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import Struct

from client.lab.chaos.measure import FaultFigures

WEIGHTS = {"rpo": 0.3, "rto": 0.2, "elasticity": 0.1, "jitter": 0.1, "preemption": 0.3}


class Score(Struct, frozen=True, kw_only=True):
    """The score and its terms; None: not measured."""

    total: float | None
    rpo: float | None
    rto: float | None
    elasticity: float | None
    jitter: float | None
    preemption: float | None
    weights: dict[str, float]


def score(
    faults: Sequence[FaultFigures],
    *,
    elasticity_s: Sequence[float],
    jitter: float | None,
    corrected_goodput: float | None,
) -> Score:
    """Return the score.

    Args:
        faults: only those that were injected count.
        elasticity_s: seconds of throughput lost by each join and leave.
        jitter: throughput under jitter against that without.
        corrected_goodput: against the paired run, corrected for volunteers that were away.
    """
    done = [fault for fault in faults if fault.at_s is not None]
    times = [fault.rto_s for fault in done if fault.rto_s is not None]
    terms: dict[str, float | None] = {
        "rpo": _inverse(statistics.fmean(fault.lost_steps for fault in done)) if done else None,
        "rto": _inverse(statistics.median(times)) if times else None,
        "elasticity": _inverse(statistics.fmean(elasticity_s)) if elasticity_s else None,
        "jitter": None if jitter is None else min(1.0, jitter),
        "preemption": None if corrected_goodput is None else min(1.0, corrected_goodput),
    }
    return Score(total=_weighted(terms), weights=WEIGHTS, **terms)


def _inverse(cost: float) -> float:
    return round(1.0 / (1.0 + max(0.0, cost)), 4)


def _weighted(terms: dict[str, float | None]) -> float | None:
    known = {name: term for name, term in terms.items() if term is not None}
    weight = sum(WEIGHTS[name] for name in known)
    if not known:
        return None
    return round(sum(WEIGHTS[name] * term for name, term in known.items()) / weight, 4)
