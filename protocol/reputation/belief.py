"""Estimates one peer's compute speed and bandwidth from partners' reports. Pure arithmetic.

A claim stands while partners measure about as much. A claim far above their measurements is
corrected after two minutes. A peer that does more than it claims is believed to do so after five
minutes, when the matching stops capping its claims (``measured_s``). Values are rounded to two
digits and claims have a tolerance band, so measurement noise changes no match.

A rate at a stage becomes FLOP/s by the manifest's F_s. A peer that serves two stages splits its
time between them, so its speed is the sum. A rate that the peer's bandwidth explains says nothing
about its processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.ids import Stage
from protocol.manifest import StageCost
from protocol.membership.measured import LineRate, Partner
from protocol.reputation.weighing import Sample, Verdict, two_digits, weigh

MICRO: Final = 1_000_000
CORRECT_AFTER_S: Final = 120
"""Seconds of measurement after which a claim is lowered."""
TRUST_AFTER_S: Final = 300
"""Seconds after which it is uncapped or raised (MEASURED_S of the matching)."""
LINE_AFTER_S: Final = 5
"""Seconds of transfers needed for a bandwidth; few, because a line is busy only now and then."""
BAND: Final = 1.25
"""A claim within this factor of the measurement stands."""
LINE_BAND: Final = 2.5
"""The same for bandwidth: two peers that download from one donor each see half of its line."""
LINE_BOUND: Final = 0.8
"""A rate of at least this share of what the bandwidth allows is limited by the bandwidth."""
SECONDS_STEP: Final = 60


@dataclass(frozen=True, slots=True)
class Belief:
    """Speed and bandwidth that are believed of a peer; before anybody has measured it, what it
    claims in its advert."""

    flops: float
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    measured_s: float = 0.0
    """Seconds, in whole minutes, of partners' measurements; at most ``TRUST_AFTER_S``."""
    overstated: float = 1.0
    """Claimed over measured FLOP/s where the claim was lowered, else 1."""
    words: str = field(default="nobody has measured it yet", compare=False)


@dataclass(frozen=True, slots=True)
class _Service:
    """A peer's measured speed; ``line_bound``: its bandwidth explains the rates."""

    flops: float
    seconds: int
    line_bound: bool
    words: str


def believe(
    claim: Belief, serving: frozenset[Stage], reports: Sequence[Partner], costs: Sequence[StageCost]
) -> Belief:
    """Return the belief that follows from a claim and partners' reports.

    Args:
        claim: FLOP/s and bytes/s that the peer advertises.
        serving: stages that the peer serves now.
        reports: at most one by each partner, all about this peer.
        costs: cost of a microbatch in each stage, from the manifest.
    """
    uplink, up_words = _line(claim.uplink_bytes_per_s, (r.uplink for r in reports), "uplink")
    downlink, down_words = _line(
        claim.downlink_bytes_per_s, (r.downlink for r in reports), "downlink"
    )
    service = _service(serving, reports, costs, uplink, downlink)
    flops, words = _believed_flops(claim.flops, service)
    return Belief(
        flops=flops,
        uplink_bytes_per_s=uplink,
        downlink_bytes_per_s=downlink,
        measured_s=float(min(service.seconds // SECONDS_STEP * SECONDS_STEP, TRUST_AFTER_S)),
        overstated=max(1.0, claim.flops / flops) if flops > 0 else 1.0,
        words="; ".join(part for part in (words, up_words, down_words) if part),
    )


def _believed_flops(claimed: float, service: _Service) -> tuple[float, str]:
    measured = service.flops
    if service.seconds < CORRECT_AFTER_S or measured <= 0:
        return claimed, service.words
    if service.line_bound and claimed > measured:
        return claimed, f"{service.words}; its line sets its pace"
    if claimed > BAND * measured:
        return measured, f"{service.words}: it does 1/{claimed / measured:.1f} of what it claims"
    if measured > BAND * claimed and service.seconds >= TRUST_AFTER_S:
        return measured, f"{service.words}: it does more than it claims"
    return claimed, f"{service.words}: as it claims"


def _service(
    serving: frozenset[Stage],
    reports: Sequence[Partner],
    costs: Sequence[StageCost],
    uplink: float,
    downlink: float,
) -> _Service:
    verdicts = _verdicts(reports)
    known = {stage: v for stage, v in verdicts.items() if v.value is not None}
    here = known.keys() & serving
    if here and here != serving:
        return _Service(0.0, 0, False, "measured in one of its stages only")
    if not here and known:  # it has moved: use its old stage until the new one is measured
        here = {max(known, key=lambda stage: (known[stage].seconds, -stage))}
    if not here:
        return _Service(0.0, 0, False, next((v.words for v in verdicts.values()), ""))
    micro = {stage: known[stage].value or 0 for stage in here}
    flops = sum(rate * costs[stage].flops for stage, rate in micro.items()) / MICRO
    bound = all(
        rate >= LINE_BOUND * MICRO * _line_rate(costs[stage], uplink, downlink)
        for stage, rate in micro.items()
    )
    seconds = min(known[stage].seconds for stage in here)
    return _Service(float(two_digits(int(flops))), seconds, bound, known[min(here)].words)


def _verdicts(reports: Sequence[Partner]) -> Mapping[Stage, Verdict]:
    samples: dict[Stage, list[Sample]] = {}
    for report in reports:
        for rate in report.rates:
            samples.setdefault(Stage(rate.stage), []).append(Sample(rate.rate, rate.seconds))
    return {stage: weigh(found) for stage, found in sorted(samples.items())}


def _line_rate(cost: StageCost, uplink: float, downlink: float) -> float:
    """Return the microbatches per second that the bandwidths (bytes/s) allow."""
    pairs = ((uplink, cost.uplink_bytes), (downlink, cost.downlink_bytes))
    return min((supply / demand for supply, demand in pairs if demand > 0), default=float("inf"))


def _line(claimed: float, lines: Iterable[LineRate], name: str) -> tuple[float, str]:
    verdict = weigh(Sample(line.bytes_per_s, line.seconds) for line in lines)
    if verdict.value is None or verdict.seconds < LINE_AFTER_S or verdict.value <= 0:
        return claimed, ""
    if verdict.value <= BAND * claimed and claimed <= LINE_BAND * verdict.value:
        return claimed, ""
    value = two_digits(verdict.value)
    return float(value), f"{name} {verdict.words} at {8e-6 * value:.2g} Mbit/s"
