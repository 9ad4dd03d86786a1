"""How much of the swarm was missing while faults were done. Pure.

Two answers, for two questions. The share of all volunteers' time that was missing says how much
compute was gone. But a pipeline is as fast as its weakest stage: where one of three replicas is
away, two thirds is what is left for everybody, and the other stages wait. The share of the weakest
stage that was there, over time, is what the swarm could have reached without losing anything else.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import defaultdict

from client.cli.chaos.run import Seen


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


def weakest_stage_share(seen: Seen) -> float:
    """Return the mean over time of the share of its replicas that the weakest stage had.

    Volunteers count alike, each for the stage that it served last.
    """
    places = _places(seen)
    moments = {seen.began, seen.ended}
    moments |= {
        moment for spans in seen.away.values() for span in spans for moment in span if moment
    }
    moments |= {moment for served in places.values() for moment, _ in served}
    cuts = sorted(moment for moment in moments if seen.began <= moment <= seen.ended)
    reached = sum(
        (end - begin) * _weakest(seen, places, (begin + end) / 2)
        for begin, end in itertools.pairwise(cuts)
    )
    span = seen.ended - seen.began
    return reached / span if span > 0 else 1.0


def _places(seen: Seen) -> dict[str, list[tuple[float, int]]]:
    """Return by volunteer from when on it served which stage, in order."""
    places: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for note in sorted(seen.notes, key=lambda note: note.time):
        stage = note.number("stage")
        if note.kind == "StageAssigned" and note.text("state") == "serving" and stage is not None:
            places[note.name].append((note.time, stage))
    return places


def _weakest(seen: Seen, places: dict[str, list[tuple[float, int]]], moment: float) -> float:
    there: dict[int, list[bool]] = defaultdict(list)
    for name, spans in seen.away.items():
        served = places.get(name)
        if not served:
            continue
        last = max(0, bisect.bisect_right(served, moment, key=lambda place: place[0]) - 1)
        away = any(_overlap(begin, end, moment, moment + 1e-9) > 0 for begin, end in spans)
        there[served[last][1]].append(not away)
    return min((sum(present) / len(present) for present in there.values()), default=1.0)


def _overlap(begin: float, end: float | None, first: float, last: float) -> float:
    return max(0.0, min(last if end is None else end, last) - max(begin, first))
