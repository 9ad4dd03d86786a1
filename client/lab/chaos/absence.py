"""The share of the swarm that was missing during faults. Pure."""

from __future__ import annotations

import statistics

from client.lab.chaos.run import Seen


def missing_share(seen: Seen) -> float:
    """Return the share of volunteer-seconds that were missing, each weighted by its rate."""
    span = seen.ended - seen.began
    rates = [seen.rates[name] for name in seen.away if name in seen.rates]
    usual = statistics.median(rates) if rates else 1.0
    missing = total = 0.0
    for name, spans in seen.away.items():
        weight = seen.rates.get(name, usual)
        gone = (_overlap(begin, end, seen.began, seen.ended) for begin, end in spans)
        missing += weight * sum(gone)
        total += weight * span
    return missing / total if total > 0 else 0.0


def _overlap(begin: float, end: float | None, first: float, last: float) -> float:
    return max(0.0, min(last if end is None else end, last) - max(begin, first))
