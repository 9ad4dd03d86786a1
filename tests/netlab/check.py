"""Whether a laboratory does what its table says.

Throughput: within 10 % of the narrower line, by one TCP stream, on links that lose nothing; where
packets get lost TCP's windows decide, and its rate is shown but not judged. Round-trip time: within
10 % and 2 ms. Lost datagrams: within three standard deviations and a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

from tests.netlab.lab import Lab
from tests.netlab.measure import DATAGRAMS, loss, rtt_ms, stream_mbit

RATE_SHARE = 0.10
RTT_SHARE, RTT_MS = 0.10, 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of one direction."""

    source: str
    target: str
    what: str
    unit: str
    promised: float
    measured: float
    allowed: float
    """Largest relative difference; infinite: the figure is not judged."""

    @property
    def good(self) -> bool:
        """Whether the table holds."""
        return abs(self.measured - self.promised) <= self.allowed

    def __str__(self) -> str:
        said = "not judged" if math.isinf(self.allowed) else "ok" if self.good else "WRONG"
        return (
            f"{self.source:>8} > {self.target:8} {self.what:4}  promised {self.promised:8.2f}  "
            f"measured {self.measured:8.2f} {self.unit:5} {said}"
        )


def check(lab: Lab, say: Callable[[Finding], None]) -> list[Finding]:
    """Measure every pair in both directions, one after the other."""
    found = []
    for source, target in permutations(lab.hosts, 2):
        for measure in (_rtt, _rate, _loss):
            finding = measure(lab, source, target)
            say(finding)
            found.append(finding)
    return found


def _rtt(lab: Lab, source: str, target: str) -> Finding:
    link = lab.table.link(source, target)
    promised = link.rtt_ms + link.jitter_ms
    allowed = RTT_SHARE * promised + RTT_MS
    return Finding(source, target, "rtt", "ms", promised, rtt_ms(lab, source, target), allowed)


def _rate(lab: Lab, source: str, target: str) -> Finding:
    promised = lab.table.rate_mbit(source, target)
    allowed = math.inf if lab.table.link(source, target).loss else RATE_SHARE * promised
    measured = stream_mbit(lab, source, target)
    return Finding(source, target, "rate", "Mb/s", promised, measured, allowed)


def _loss(lab: Lab, source: str, target: str) -> Finding:
    share = lab.table.link(source, target).loss
    deviation = math.sqrt(share * (1 - share) / DATAGRAMS)
    measured = loss(lab, source, target)
    allowed = 3 * deviation + 0.1 * share + 1 / DATAGRAMS
    return Finding(source, target, "loss", "%", 100 * share, 100 * measured, 100 * allowed)
