"""The efficiency model: the seconds of one step of a placed swarm, term by term.

A step of M microbatches takes

    T = (M - 1) tau + max(tau, L + E)

    tau  time between microbatches at the slowest stage, 1 / min_s sum over its replicas of c_vs
         (protocol/matching/README.md); a longer one where memory keeps too few in flight
    L    latency of a microbatch through the empty pipeline and back
    E    the part of the averaging that is not hidden

The last stages close their step while earlier ones still drain, and the next step begins at stage
0 as soon as that has committed: the averaging of stage s, A_s, has the time p_s of a microbatch
from stage s to stage 0 and back before any stage waits for it, so E = max_s max(0, A_s - p_s).
Everything else is assumed to overlap: computing, sending, receiving.

No term grows when a machine gets faster, or its line gets wider or shorter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from client.plan.machines import Machine, StageWork
from protocol.rounds.shards import heeded, round_s, segments, shares

AVERAGING_TRIPS = 2.5
"""Round trips in a round: plan, contributions, sums, hashes and commit are five messages in a row
(protocol/SPEC.md, section 10)."""
RECOMPUTED = 4 / 3
"""Work of a microbatch with a recomputed forward; backward costs twice the forward."""
SPARE = 1.25
"""Microbatches in flight, relative to the number that just fills the pipeline."""
LEAST_RATE, MOST_RATE = 1e-30, 1e30
"""Bounds of microbatches per second; outside them floats would overflow."""
COSTS_NOTHING = "a stage is said to cost nothing"

Limit = Literal["compute", "link", "latency", "averaging", "memory"]
Placement = Sequence[Sequence[Machine]]
"""The replicas of every stage."""


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters of the whole pipeline."""

    stages: tuple[StageWork, ...]
    microbatches: int
    """Per step: M."""
    tokens_per_microbatch: int
    averaging_bytes_per_parameter: float
    delayed: bool = False
    """One-step-delayed update: filling, draining and averaging of adjacent steps overlap."""


@dataclass(frozen=True, slots=True)
class StageTerms:
    """One stage's part in the prediction."""

    replicas: int
    compute_per_s: float
    """Microbatches per second with infinite bandwidth."""
    link_per_s: float
    """Microbatches per second with infinite compute."""
    rate_per_s: float
    """Microbatches per second: the sum of the replicas' rates, each by its bottleneck."""
    compute_s: float
    """Forward and backward of one microbatch at an average replica."""
    boundary_s: float
    """To the next stage and back: both tensors and one round-trip time."""
    averaging_s: float
    exposed_s: float
    """The averaging that is hidden by neither draining nor filling."""
    sent_bytes: float
    """Per step, boundaries and averaging, of the replica that sends most; faster replicas get more
    microbatches."""
    received_bytes: float
    """The same for the replica that receives most."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One step. The five terms add up to ``step_s``."""

    stages: tuple[StageTerms, ...]
    bottleneck: int
    """The stage with the lowest rate."""
    limit: Limit
    """The largest term."""
    in_flight: int
    step_s: float
    compute_s: float
    """M tau where the slowest stage computes; else 0."""
    link_s: float
    """M tau where the slowest stage waits for its links; else 0."""
    latency_s: float
    """Filling and draining the pipeline: L - tau."""
    averaging_s: float
    memory_s: float
    """Loss due to small memory: recomputed forwards, or too few microbatches in flight."""
    tokens_per_s: float
    efficiency: float
    """Of min(compute bound, link bound): M tau / T."""


def predict(run: Run, placement: Placement) -> Prediction:
    """Return the prediction for one step; every stage needs a replica that fits it.

    Raises:
        ValueError: a stage has no replica, or costs nothing.
    """
    if not all(placement) or len(placement) != len(run.stages):
        raise ValueError("every stage needs a replica")
    for stage, (work, members) in enumerate(zip(run.stages, placement, strict=True)):
        _check_rate(stage, sum(map(work.rate, members)))
    terms = _stage_terms(run, placement)
    slowest = min(range(len(terms)), key=lambda s: terms[s].rate_per_s)
    tau = 1 / terms[slowest].rate_per_s
    way = sum(t.compute_s + t.boundary_s for t in terms)
    exposed, rounds = max(t.exposed_s for t in terms), max(t.averaging_s for t in terms)

    def step_s(
        pace: tuple[float, float], exposed: float = exposed, rounds: float = rounds
    ) -> float:
        alone = (run.microbatches - 1) * pace[0] + max(tau, pace[1] + exposed)
        # a step waits for the update of the one before the last; there is one round at a time
        return max(run.microbatches * pace[0], alone / 2, rounds) if run.delayed else alone

    paced, slower_way = best = min(_paces(run, placement, tau, way), key=step_s)
    unhindered, step = step_s((tau, way)), step_s(best)
    steady = run.microbatches * tau
    filling = step_s((tau, way), exposed=0.0, rounds=0.0) - steady
    computing = terms[slowest].compute_per_s <= terms[slowest].link_per_s
    parts: dict[Limit, float] = {
        "compute": steady if computing else 0.0,
        "link": 0.0 if computing else steady,
        "latency": filling,
        "averaging": unhindered - steady - filling,
        "memory": step - unhindered,
    }
    return Prediction(
        stages=terms,
        bottleneck=slowest,
        limit=max(parts, key=lambda limit: parts[limit]),
        in_flight=min(run.microbatches, in_flight(slower_way, paced)),
        step_s=step,
        compute_s=parts["compute"],
        link_s=parts["link"],
        latency_s=filling,
        averaging_s=parts["averaging"],
        memory_s=parts["memory"],
        tokens_per_s=run.microbatches * run.tokens_per_microbatch / step,
        efficiency=steady / step,
    )


def in_flight(way_s: float, tau_s: float) -> int:
    """Return ceil(L / tau) + 25 %."""
    return math.ceil(SPARE * math.ceil(way_s / tau_s - 1e-9))


def averaging_s(members: Sequence[Machine], elements: float, bytes_per_element: float) -> float:
    """Return the seconds of a butterfly all-reduce among a stage's replicas.

    This is the time of the slowest replica, with the shards that leaders plan, plus latency.

    Args:
        members: the stage's replicas.
        elements: gradient elements of the stage.
        bytes_per_element: bytes on the wire per element.
    """
    if (count := len(members)) == 1:
        return 0.0
    cut = segments(int(elements), count)
    split = zip(_owned(members, elements), _lines(members), strict=True)
    slowest = max(round_s(share, line, count, cut) for share, line in split)
    trips = AVERAGING_TRIPS * max(m.rtt_s for m in members)
    return elements * bytes_per_element * slowest + trips


def _lines(members: Sequence[Machine]) -> list[tuple[float, float]]:
    return [(member.upload_bytes_per_s, member.download_bytes_per_s) for member in members]


def _owned(members: Sequence[Machine], elements: float) -> list[float]:
    """Return the share of the gradient that each replica owns."""
    return shares(heeded(_lines(members), segments(int(elements), len(members))))


def _check_rate(stage: int, rate: float) -> None:
    if rate < LEAST_RATE:
        raise ValueError(f"no replica of stage {stage} can do its work")
    if rate > MOST_RATE:
        raise ValueError(COSTS_NOTHING)


def _stage_terms(run: Run, placement: Placement) -> tuple[StageTerms, ...]:
    found = []
    path = 0.0
    for stage, (work, members) in enumerate(zip(run.stages, placement, strict=True)):
        compute = _sum(members, "flop_per_s") / max(work.cost.flops, 1e-30)
        boundary = _boundary_s(run, placement, stage)
        averaging = averaging_s(members, work.cost.parameters, run.averaging_bytes_per_parameter)
        taken = len(members) / compute
        traffic = _traffic(run, work, members)
        found.append(
            StageTerms(
                replicas=len(members),
                compute_per_s=compute,
                link_per_s=_link_rate(work, members),
                rate_per_s=sum(map(work.rate, members)),
                compute_s=taken,
                boundary_s=boundary,
                averaging_s=averaging,
                exposed_s=max(0.0, averaging - path),
                sent_bytes=max(sent for sent, _ in traffic),
                received_bytes=max(received for _, received in traffic),
            )
        )
        path += taken + boundary
    return tuple(found)


def _traffic(run: Run, work: StageWork, members: Sequence[Machine]) -> list[tuple[float, float]]:
    """Return the bytes that each replica sends and receives in a step.

    Its share of the microbatches is its share of the stage's rate. In a round it sends as much as
    it receives: V (1 + (N - 2) w), ``protocol.rounds.shards``.
    """
    cost = work.cost
    size = cost.parameters * run.averaging_bytes_per_parameter
    whole = sum(map(work.rate, members))
    found = []
    for member, owned in zip(members, _owned(members, cost.parameters), strict=True):
        taken = run.microbatches * work.rate(member) / whole
        averaged = size * (1 + (len(members) - 2) * owned)
        found.append((taken * cost.uplink_bytes + averaged, taken * cost.downlink_bytes + averaged))
    return found


def _boundary_s(run: Run, placement: Placement, stage: int) -> float:
    """Return the seconds from a stage to the next one and back: RTT + S / U for each direction.

    The narrower end of each direction decides. The first stage sends only forward, the last only
    back, which gives the sizes S. All replicas have equal weight.
    """
    if stage == len(placement) - 1:
        return 0.0
    here, there = placement[stage], placement[stage + 1]
    forward, backward = run.stages[0].cost.uplink_bytes, run.stages[-1].cost.uplink_bytes
    out = max(
        forward * len(here) / _sum(here, "upload_bytes_per_s"),
        forward * len(there) / _sum(there, "download_bytes_per_s"),
    )
    back = max(
        backward * len(there) / _sum(there, "upload_bytes_per_s"),
        backward * len(here) / _sum(here, "download_bytes_per_s"),
    )
    rtt = (_sum(here, "rtt_s") / len(here) + _sum(there, "rtt_s") / len(there)) / 2
    return out + back + rtt


def _link_rate(work: StageWork, members: Sequence[Machine]) -> float:
    return sum(work.rate(member, slower=0.0) for member in members)


def _paces(
    run: Run, placement: Placement, tau: float, way: float
) -> tuple[tuple[float, float], ...]:
    """Return the time between microbatches and the latency, for each of two uses of memory.

    Either the microbatches in flight are limited by the graphs that stages before the last keep, or
    as many as needed are in flight and every forward before the last stage is recomputed for its
    backward. The last stage runs both in one pass and keeps no graph.
    """
    pairs = list(zip(run.stages, placement, strict=True))[:-1]
    if not pairs:
        return ((tau, way),)
    most = min(sum(work.graphs(m) for m in members) for work, members in pairs)
    slowest = min(sum(work.rate(m, RECOMPUTED) for m in members) for work, members in pairs)
    again = sum(
        (RECOMPUTED - 1) * work.cost.flops * len(members) / _sum(members, "flop_per_s")
        for work, members in pairs
    )
    return (max(tau, way / most), way), (max(tau, 1 / slowest), way + again)


def _sum(members: Sequence[Machine], field: str) -> float:
    return float(sum(getattr(member, field) for member in members))
