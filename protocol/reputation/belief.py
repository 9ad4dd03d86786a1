"""Estimates one peer's compute speed from partners' reports. Pure arithmetic.

What partners measured is combined to their median, if enough of them agree with it. One slanderer
or one accomplice changes nothing: a single report does not count, and more than half of the
partners must lie near the median. For how long each has measured is its own word, and gives it no
more weight than another. Integers only, so that equal reports give equal beliefs on every machine.

A claim stands while partners measure about as much. A claim far above their measurements is
corrected after two minutes. A peer that does more than it claims is believed to do so after five
minutes, when the matching stops capping its claims (``measured_s``). Values are rounded to two
digits and claims have a tolerance band, so measurement noise changes no match.

A rate at a stage becomes FLOP/s by the manifest's F_s. A peer that serves two stages splits its
time between them, so its speed is the sum. A rate that the bandwidth explains that the peer claims
says nothing about its processor; who claims a better line than it has is taken for slow.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median_low
from typing import Final

from protocol.ids import Stage
from protocol.manifest import StageCost
from protocol.matching.member import Member
from protocol.matching.timing import MEASURED_S
from protocol.membership.measured import Partner, StageRate
from protocol.pace import ASIDE_S

MICRO: Final = 1_000_000
MIN_REPORTERS: Final = 2
NEAR_PERCENT: Final = 35
"""A partner agrees if its value is within this distance of the median, either way."""
CORRECT_AFTER_S: Final = ASIDE_S * 2
"""Seconds of measurement after which a claim is lowered; it is raised after ``MEASURED_S``."""
BAND: Final = 1.25
"""A claim within this factor of the measurement stands."""
LINE_BOUND: Final = 0.8
"""A rate of at least this share of what the bandwidth allows is limited by the bandwidth."""
SECONDS_STEP: Final = 60


def weigh(stage: Stage, rates: Iterable[StageRate]) -> StageRate | None:
    """Return the rate in a stage that most partners agree on, and the seconds measured by each of
    at least ``MIN_REPORTERS`` of them; None: they are too few, or disagree."""
    known = [one for one in rates if one.stage == stage and one.seconds > 0]
    if len(known) < MIN_REPORTERS:
        return None
    middle = median_low(one.rate for one in known)
    near = [one for one in known if 100 * abs(one.rate - middle) <= NEAR_PERCENT * middle]
    if 2 * len(near) <= len(known) or len(near) < MIN_REPORTERS:
        return None
    seconds = sorted((one.seconds for one in near), reverse=True)[MIN_REPORTERS - 1]
    return StageRate(stage, middle, seconds)


def two_digits(value: int) -> int:
    """Round to two significant digits, so that noise changes no match."""
    scale: int = 10 ** max(0, len(str(value)) - 2)
    return (value + scale // 2) // scale * scale


def believe(claimed: Member, reports: Sequence[Partner], costs: Sequence[StageCost]) -> Member:
    """Return a member as it describes itself with the speed that is believed of it, by at most one
    report of each partner, and the seconds, in whole minutes, for which partners have measured it,
    at most ``MEASURED_S``."""
    rates = _rates(claimed.serving, reports)
    seconds = min((rate.seconds for rate in rates.values()), default=0)
    flops = sum(one.rate * costs[stage].flops for stage, one in rates.items()) / MICRO
    line_bound = all(
        one.rate >= LINE_BOUND * MICRO * _line_rate(costs[stage], claimed)
        for stage, one in rates.items()
    )
    value = float(two_digits(int(flops)))
    lowered = claimed.flops > BAND * value and seconds >= CORRECT_AFTER_S and not line_bound
    raised = value > BAND * claimed.flops and seconds >= MEASURED_S
    return replace(
        claimed,
        flops=value if value > 0 and (lowered or raised) else claimed.flops,
        measured_s=float(min(seconds // SECONDS_STEP * SECONDS_STEP, MEASURED_S)),
    )


def _rates(serving: frozenset[Stage], reports: Sequence[Partner]) -> Mapping[Stage, StageRate]:
    """Return the peer's rates by stage, in millionths of a microbatch per second: of all stages
    that it serves, or none. Of one that has moved, its old stage counts until the new one is
    measured."""
    rates = [rate for report in reports for rate in report.rates]
    stages = dict.fromkeys(Stage(rate.stage) for rate in rates)
    known = {stage: one for stage in stages if (one := weigh(stage, rates))}
    here = {stage: one for stage, one in known.items() if stage in serving}
    if here or not known:
        return here if here.keys() == serving else {}
    last = max(known, key=lambda stage: (known[stage].seconds, -stage))
    return {last: known[last]}


def _line_rate(cost: StageCost, claim: Member) -> float:
    """Return the microbatches per second that the claimed bandwidths allow."""
    pairs = (
        (claim.uplink_bytes_per_s, cost.uplink_bytes),
        (claim.downlink_bytes_per_s, cost.downlink_bytes),
    )
    return min((supply / demand for supply, demand in pairs if demand > 0), default=float("inf"))
