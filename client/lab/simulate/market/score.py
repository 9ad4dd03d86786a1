"""Computes figures from the observations: shares of the oracle, moves, recoveries. Pure."""

import numpy as np
from msgspec import Struct

from client.lab.simulate.market.bounds import Oracle
from client.lab.simulate.market.nature import Floats, Nature
from client.lab.simulate.market.policies.policy import Said
from client.lab.simulate.market.run import RESOLUTION_S, Record

DENT = 0.95
"""A loss counts if throughput falls below this share of its earlier value, and is over at this
share again, both relative to the oracle."""


class Talk(Struct, frozen=True):
    """The messages of the matching, per volunteer and hour."""

    letters: float
    """Signed messages sent."""
    records: float
    """Postings and the like received, each once."""
    bytes: float
    """Of both."""


class Figures(Struct, frozen=True):
    """One run in numbers. Shares are between integrals over the whole time."""

    policy: str
    share: float
    """Throughput over the bound for one stage a volunteer."""
    moves: float
    """Served stages given up by those that stayed, per volunteer and hour."""
    downloads: float
    """Stages fetched, per volunteer and hour."""
    rematch_median_s: float | None
    """From a loss that counts until throughput is back; None without such a loss."""
    rematch_p95_s: float | None
    empty: float
    """Share of the time in which a stage was not served."""
    talk: Talk | None
    """Only of policies that exchange messages."""


def score(policy: str, nature: Nature, oracle: Oracle, record: Record) -> Figures:
    """Return the figures of a run."""
    bound = oracle.at(record.times_s)
    share = record.throughput / np.maximum(bound, 1.0)
    waits = recoveries_s(record.times_s, share, record.losses_s)
    hours = volunteer_hours(nature)
    return Figures(
        policy=policy,
        share=_over(record.throughput, bound),
        moves=record.effort.moves / hours,
        downloads=record.effort.downloads / hours,
        rematch_median_s=float(np.median(waits)) if waits else None,
        rematch_p95_s=float(np.quantile(waits, 0.95)) if waits else None,
        empty=float(record.empty.mean()),
        talk=_talk(record.said, hours) if record.said else None,
    )


def _talk(said: Said, hours: float) -> Talk:
    sent = said.letter_bytes + said.record_bytes
    return Talk(said.letters / hours, said.records / hours, sent / hours)


def volunteer_hours(nature: Nature) -> float:
    """Return the sum of all volunteers' hours."""
    ends = np.minimum(nature.leaves_s, nature.horizon_s)
    return float(np.maximum(ends - nature.joins_s, 0.0).sum()) / 3600.0


def recoveries_s(times_s: Floats, share: Floats, losses_s: Floats) -> list[float]:
    """Return the duration of each dent of the throughput after a loss.

    Losses during a dent belong to it; a dent that is open at the end counts until the end.
    """
    found: list[float] = []
    mended_at = -1.0
    for lost_at in losses_s.tolist():
        if lost_at < mended_at:
            continue
        after = int(np.searchsorted(times_s, lost_at, side="right"))
        if after == 0 or after >= len(times_s) or share[after] >= DENT * share[after - 1]:
            continue
        whole = np.flatnonzero(share[after:] >= DENT * share[after - 1])
        mended_at = float(times_s[after + whole[0]] if len(whole) else times_s[-1] + RESOLUTION_S)
        found.append(mended_at - lost_at)
    return found


def _over(part: Floats, whole: Floats) -> float:
    return float(part.sum() / whole.sum()) if whole.any() else 0.0
