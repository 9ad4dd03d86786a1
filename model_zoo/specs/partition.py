"""Cuts a model into stages so that the slowest stage is as cheap as possible.

Costs are one number per part in model order: embedding, every layer, head. They may be measured
seconds or analytic FLOPs; only their ratios matter for the cut.
"""

from collections.abc import Sequence

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice


def cut(spec: ModelSpec, costs: Sequence[float] | None, stages: int) -> tuple[int, ...]:
    """Return layers per stage such that the most expensive stage is as cheap as possible.

    Args:
        spec: the model.
        costs: `spec.layers + 2` numbers (embedding, layers, head), or None for analytic FLOPs.
        stages: from 1 to `spec.layers`; every stage gets at least one layer.

    Raises:
        ValueError: the number of stages or of costs does not fit, or a cost is negative.
    """
    if not 1 <= stages <= spec.layers:
        raise ValueError(f"{spec.layers} layers make 1 to {spec.layers} stages, not {stages}")
    if costs is None:
        costs = _analytic_costs(spec)
    if len(costs) != spec.layers + 2 or not all(0 <= cost < float("inf") for cost in costs):
        raise ValueError(f"need {spec.layers + 2} costs >= 0 (embedding, layers, head): {costs}")
    layers = list(costs[1:-1])
    layers[0] += costs[0]
    layers[-1] += costs[-1]
    return _linear_partition(layers, stages)


def _linear_partition(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """Lengths of `parts` non-empty runs of `costs` that minimise the largest run's sum.

    Dynamic programme over (runs, end): best[end] is the least (largest sum, sum of squares); the
    second number spreads the rest evenly among cuts whose dearest stage costs the same.
    """
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)
    count = len(costs)
    best = [(total, total * total) for total in prefix]
    starts: list[list[int]] = []
    for runs in range(2, parts + 1):
        row, chosen = list(best), [0] * (count + 1)
        for end in range(runs, count + 1):
            row[end], chosen[end] = _last_run(best, prefix, end, runs - 1)
        best = row
        starts.append(chosen)
    return _lengths(starts, count)


def _last_run(
    best: list[tuple[float, float]], prefix: list[float], end: int, first: int
) -> tuple[tuple[float, float], int]:
    """The best sums of runs that end at `end`, and where the last of them starts, from `first` on.

    From the shortest last run to the longest: once it alone is dearer, the longer ones are, too.
    """
    chosen = _joined(best[end - 1], prefix[end] - prefix[end - 1]), end - 1
    for start in range(end - 2, first - 1, -1):
        total = prefix[end] - prefix[start]
        if total > chosen[0][0]:
            break
        chosen = min(chosen, (_joined(best[start], total), start))
    return chosen


def _joined(before: tuple[float, float], total: float) -> tuple[float, float]:
    return max(before[0], total), before[1] + total * total


def _lengths(starts: list[list[int]], end: int) -> tuple[int, ...]:
    lengths = []
    for chosen in reversed(starts):
        lengths.append(end - chosen[end])
        end = chosen[end]
    return (end, *reversed(lengths))


def single_parts() -> tuple[StageSlice, StageSlice, StageSlice]:
    """Slices that hold the embedding alone, one layer alone and the head alone."""
    return (
        StageSlice(0, 3, 0, 0, embeds=True, has_head=False),
        StageSlice(1, 3, 0, 1, embeds=False, has_head=False),
        StageSlice(2, 3, 1, 1, embeds=False, has_head=True),
    )


def _analytic_costs(spec: ModelSpec) -> tuple[float, ...]:
    embedding, layer, head = (float(flops_per_token(spec, part)) for part in single_parts())
    return (embedding, *([layer] * spec.layers), head)
