"""The efficiency model: the seconds of one step of a placed swarm, term by term.

A step of M microbatches takes

    T = (M - 1) tau + max(tau, L + E)

    tau  time between microbatches at the slowest stage, 1 / min_s sum over its replicas of c_vs
         (protocol/matching/README.md), or what handling one takes
    L    latency of a microbatch through the empty pipeline and back
    E    the part of the averaging that is not hidden

The last stages close their step while earlier ones still drain, and the next step begins at stage
0 as soon as that has committed: the averaging of stage s, A_s, has the time p_s of a microbatch
from stage s to stage 0 and back before any stage waits for it, so E = max_s max(0, A_s - p_s).
Everything else is assumed to overlap: computing, sending, receiving. A machine takes a stage that
fits its memory, and works at full speed.

In local rounds a step is a round, and nothing is computed beside its averaging: E = max_s A_s. The
replicas' own steps are part of tau: the optimizer's operations, what they copy between a GPU and
its host, and the forward passes of the graphs in flight, which are run once more after each. Where
all average in every step, the optimizer's step is not counted.

No term grows when a machine gets faster, or its line gets wider or shorter, but for the passes that
are run once more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.manifest import StageCost
from protocol.rounds.shards import owning, segments

AVERAGING_TRIPS = 2.5
"""Round trips in a round: plan, contributions, sums, hashes and commit are five messages in a row
(protocol/SPEC.md, section 10)."""
LEAST_RATE, MOST_RATE = 1e-30, 1e30
"""Bounds of microbatches per second; outside them floats would overflow."""
COSTS_NOTHING = "a stage is said to cost nothing"
HOST_BYTES_PER_S = 12e9
"""Between a GPU and its host, in each direction: half of what 16 lanes of PCIe 4 carry."""
COPIED_BYTES = 4.0
"""Of a parameter, each way, in a replica's own step: the momentum that the host has."""

Limit = Literal["compute", "link", "latency", "averaging"]


@dataclass(frozen=True, slots=True)
class Machine:
    """One volunteer. Upload and download are separate; both may be used at the same time."""

    flop_per_s: float
    """As ``volunteer bench`` measures it: the unit that stage costs are divided by."""
    memory_bytes: float
    """Bytes that stages may use, of a GPU its own."""
    upload_bytes_per_s: float
    download_bytes_per_s: float
    rtt_s: float = 0.0
    """Round trip to a typical other member."""
    host_bytes: float = 0.0
    """Of a GPU's host, which stages may use as well; 0: there is no other memory."""


Placement = Sequence[Sequence[Machine]]
"""The replicas of every stage."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a stage asks of a replica."""

    cost: StageCost
    update_flops: float = 0.0
    """Of one step of the optimizer."""
    beside_host_bytes: float = 0.0
    """The memory that a GPU needs beside a host that has the rest, `hosted_bytes`."""
    hosted_bytes: float = 0.0
    """0: a host has nothing of it."""


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters of the whole pipeline."""

    stages: tuple[Load, ...]
    microbatches: int
    """Per step: M."""
    tokens_per_microbatch: int
    averaging_bytes_per_parameter: float
    inner_microbatches: int = 0
    """Local rounds: of one replica, after which it takes a step of its own; 0: all average in every
    step."""
    forward_share: float = 1 / 3
    """Of a pass there and back."""
    handling_s: float = 0.0
    """What a microbatch takes at least, however small it is."""


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
    """The averaging that is waited for: hidden by neither draining nor filling."""
    sent_bytes: float
    """Per step, boundaries and averaging, of the replica that sends most; faster replicas get more
    microbatches."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One step."""

    stages: tuple[StageTerms, ...]
    step_s: float
    microbatch_s: float
    """Between microbatches at the slowest stage: tau."""
    parts_s: dict[Limit, float]
    """The four parts of it. M tau is computing or links, by what the slowest stage waits for;
    latency is filling and draining the pipeline: L - tau."""
    tokens_per_s: float

    @property
    def limit(self) -> Limit:
        """The largest part."""
        return max(self.parts_s, key=lambda limit: self.parts_s[limit])

    @property
    def averaging_share(self) -> float:
        """Share of the step's time that is averaging alone."""
        return self.parts_s["averaging"] / self.step_s

    @property
    def sent_bytes(self) -> float:
        """Of the volunteer that sends most."""
        return max(terms.sent_bytes for terms in self.stages)


def predict(run: Run, placement: Placement) -> Prediction:
    """Return the prediction for one step; every stage needs a replica that fits it.

    Raises:
        ValueError: a stage has no replica, or costs nothing.
    """
    if not all(placement) or len(placement) != len(run.stages):
        raise ValueError("every stage needs a replica")
    terms = _stage_terms(run, placement)
    if run.inner_microbatches:
        terms = _stage_terms(run, placement, _run_again(run, terms))
    slowest = min(range(len(terms)), key=lambda s: terms[s].rate_per_s)
    tau = max(1 / terms[slowest].rate_per_s, run.handling_s)
    way = sum(t.compute_s + t.boundary_s for t in terms)
    steady = run.microbatches * tau

    def step_s(exposed: float) -> float:
        return (run.microbatches - 1) * tau + max(tau, way + exposed)

    step = step_s(max(t.exposed_s for t in terms))
    filling = step_s(exposed=0.0) - steady
    computing = terms[slowest].compute_per_s <= terms[slowest].link_per_s
    parts: dict[Limit, float] = {
        "compute": steady if computing else 0.0,
        "link": 0.0 if computing else steady,
        "latency": filling,
        "averaging": step - steady - filling,
    }
    return Prediction(
        stages=terms,
        step_s=step,
        microbatch_s=tau,
        parts_s=parts,
        tokens_per_s=run.microbatches * run.tokens_per_microbatch / step,
    )


def fits(load: Load, machine: Machine) -> bool:
    """Whether the machine can be a replica of a stage, by the matching's rule."""
    if machine.host_bytes and load.hosted_bytes:
        here = machine.memory_bytes >= load.beside_host_bytes
        return here and machine.host_bytes >= load.hosted_bytes
    return machine.memory_bytes >= load.cost.memory_bytes


def rate(load: Load, machine: Machine) -> float:
    """Return c_vs = min(flops / F_s, uplink / U_s, downlink / D_s), microbatches/s.

    As in the matching. 0 if memory is too small.
    """
    if not fits(load, machine):
        return 0.0
    computing = _ratio(machine.flop_per_s, load.cost.flops)
    return min(computing, _link_rate(load.cost, machine))


def own_step_s(load: Load, machine: Machine) -> float:
    """Return the seconds of a step that a replica takes by itself."""
    computing = load.update_flops / machine.flop_per_s
    hosted = machine.host_bytes > 0 and load.hosted_bytes > 0
    return computing + hosted * load.cost.parameters * COPIED_BYTES / HOST_BYTES_PER_S


def _link_rate(cost: StageCost, machine: Machine) -> float:
    return min(
        _ratio(machine.upload_bytes_per_s, cost.uplink_bytes),
        _ratio(machine.download_bytes_per_s, cost.downlink_bytes),
    )


def _ratio(supply: float, demand: float) -> float:
    return supply / demand if demand > 0 else float("inf")


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
    cut = segments(-(-int(elements) // count))
    split = zip(_owned(members), _lines(members), strict=True)
    slowest = max(_round_s(share, line, count, cut) for share, line in split)
    trips = AVERAGING_TRIPS * max(m.rtt_s for m in members)
    return elements * bytes_per_element * slowest + trips


def _lines(members: Sequence[Machine]) -> list[tuple[float, float]]:
    return [(member.upload_bytes_per_s, member.download_bytes_per_s) for member in members]


def _owned(members: Sequence[Machine]) -> list[float]:
    """Return the share of the gradient that each replica owns."""
    owns = owning(_lines(members))
    return [own / sum(owns) for own in owns]


def _round_s(share: float, line: tuple[float, float], members: int, segments: int) -> float:
    """Return how long a round of one unit of gradient occupies a member.

    While gathering it sends (1 - share) and gets (N - 1) share; then it broadcasts as much as it
    got and gets the rest. All but one segment of these halves may overlap.

    Args:
        share: the part of the gradient that it owns.
        line: its uplink and downlink, units per second.
        members: N.
        segments: segments per shard.
    """
    up, down = line
    others, own = 1 - share, (members - 1) * share
    apart = max(others / up, own / down) + max(own / up, others / down)
    together = (others + own) / min(up, down)
    return together + (apart - together) / segments


def _stage_terms(
    run: Run, placement: Placement, again: Sequence[float] = ()
) -> tuple[StageTerms, ...]:
    """Return every stage's terms; ``again`` is the share of its microbatches whose forward pass is
    run once more."""
    found = []
    path = 0.0
    for stage, (load, members) in enumerate(zip(run.stages, placement, strict=True)):
        if sum(rate(load, member) for member in members) < LEAST_RATE:
            raise ValueError(f"no replica of stage {stage} can do its work")
        more = again[stage] if again else 0.0
        computing = [1 / max(_busy_s(run, load, member, more), 1e-99) for member in members]
        links = [_link_rate(load.cost, member) for member in members]
        rates = [
            min(pair) if fits(load, member) else 0.0
            for *pair, member in zip(computing, links, members, strict=True)
        ]
        if (whole := sum(rates)) > MOST_RATE:
            raise ValueError(COSTS_NOTHING)
        boundary = _boundary_s(run, placement, stage)
        averaging = averaging_s(members, load.cost.parameters, run.averaging_bytes_per_parameter)
        taken = len(members) / sum(computing)
        hidden = 0.0 if run.inner_microbatches else path
        found.append(
            StageTerms(
                replicas=len(members),
                compute_per_s=sum(computing),
                link_per_s=sum(links),
                rate_per_s=whole,
                compute_s=taken,
                boundary_s=boundary,
                averaging_s=averaging,
                exposed_s=max(0.0, averaging - hidden),
                sent_bytes=max(_sent(run, load.cost, members, rates)),
            )
        )
        path += taken + boundary
    return tuple(found)


def _busy_s(run: Run, load: Load, machine: Machine, again: float) -> float:
    """Return the seconds of computing that a microbatch takes, with its part of a step that the
    replica takes by itself."""
    passes_s = load.cost.flops * (1 + again * run.forward_share) / machine.flop_per_s
    if not run.inner_microbatches:
        return passes_s
    return passes_s + own_step_s(load, machine) / run.inner_microbatches


def _run_again(run: Run, terms: Sequence[StageTerms]) -> list[float]:
    """Return the share of each stage's microbatches that are on their way when the replica that
    waits for them takes a step of its own, which makes their graphs useless."""
    most = max(1 / each.rate_per_s for each in terms)
    ahead_s, found = 0.0, []
    for each in reversed(terms):
        waiting = (ahead_s + each.boundary_s) / most / each.replicas
        found.append(min(1.0, waiting / run.inner_microbatches))
        ahead_s += each.compute_s + each.boundary_s
    return found[::-1]


def _sent(
    run: Run, cost: StageCost, members: Sequence[Machine], rates: Sequence[float]
) -> Iterator[float]:
    """Yield the bytes that each replica sends in a step.

    Its share of the microbatches is its share of the stage's rate. In a round it sends as much as
    it receives: V (1 + (N - 2) w), ``protocol.rounds.shards``.
    """
    size = cost.parameters * run.averaging_bytes_per_parameter
    for own, owned in zip(rates, _owned(members), strict=True):
        averaged = size * (1 + (len(members) - 2) * owned)
        yield run.microbatches * own / sum(rates) * cost.uplink_bytes + averaged


def _boundary_s(run: Run, placement: Placement, stage: int) -> float:
    """Return the seconds from a stage to the next one and back: RTT + S / U for each direction.

    The narrower end of each direction decides. The first stage sends only forward, the last only
    back, which gives the sizes S. All replicas have equal weight.
    """
    if stage == len(placement) - 1:
        return 0.0
    here, there = placement[stage], placement[stage + 1]
    forward, backward = (end.cost.uplink_bytes for end in (run.stages[0], run.stages[-1]))
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


def _sum(members: Sequence[Machine], field: str) -> float:
    return float(sum(getattr(member, field) for member in members))
