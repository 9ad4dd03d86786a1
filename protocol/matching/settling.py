"""Actions of a stage once all stages are quiet: help one that lacks replicas, or detect the end.

Pure functions of the pool, the others' postings and the population. A stage that helps keeps r
replicas, and its cutoff rises, so the process ends.
"""

from collections.abc import Sequence

from protocol.matching.bodies import QUIET, Posting
from protocol.matching.pool import HeldPlace, Pool
from protocol.matching.population import Population

Others = Sequence[Posting] | None
"""The postings of all other stages; None while one of them has no steward."""


def all_quiet(others: Others) -> bool:
    """Tell whether nobody has arrived for a while at any other stage."""
    return others is not None and all(posting.phase >= QUIET for posting in others)


def all_covered(pool: Pool, others: Others) -> bool:
    """Tell whether every stage, ours (``pool``) and the ``others``, has a replica."""
    return bool(pool.places) and others is not None and all(p.copies for p in others)


def help_needy(pool: Pool, others: Others, population: Population) -> list[HeldPlace]:
    """Release the least preferred newcomer of a stage with more than r replicas if others lack any.

    As many stages give one as replicas are missing, those with most replicas first.
    """
    r, last = population.redundancy, pool.last_newcomer
    lacking = [posting for posting in others or () if posting.copies < r]
    if last is None or not any(population.rate(last.peer, p.stage) for p in lacking):
        return []
    mine = (len(pool.places), pool.level, -pool.stage)
    ahead = sum((p.copies, p.level, -p.stage) > mine for p in others or ())
    missing = sum(r - posting.copies for posting in lacking)
    return [pool.give(last)] if len(pool.places) > r and ahead < missing else []
