"""Cuts a model into stages: the cost of its parts, and the cut with the cheapest slowest stage.

Costs are one number per part in model order: embedding, every layer, head. They may be measured
seconds or analytic FLOPs; only their ratios matter for the cut.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import process_time

import torch
from torch import Tensor

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice
from model_zoo.stages import Stage, build_stage, summed_loss
from model_zoo.threads import limited_threads

LONG_PASS_S = 2.0
"""What a warm-up saves does not show in a pass of so long."""


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


def measure_costs(spec: ModelSpec, microbatch: int, repeats: int = 5) -> tuple[float, ...]:
    """Return the seconds of forward plus backward of every part: embedding, layers, head.

    Only one layer is measured, because all are alike. One thread.

    Args:
        spec: the model.
        microbatch: sequences of full context per pass.
        repeats: passes of each part, see `least_seconds`.
    """
    tokens = torch.zeros((microbatch, spec.context), dtype=torch.int64)
    hidden = torch.randn(
        (microbatch, spec.context, spec.width), generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    fed = ((tokens, hidden.detach(), None), (hidden, hidden.detach(), None), (hidden, None, tokens))
    with limited_threads(1):
        embedding_s, layer_s, head_s = (  # one part at a time is in memory
            least_seconds(partial(_pass, build_stage(spec.untied, part, seed=0), *given), repeats)
            for part, given in zip(_single_parts(), fed, strict=True)
        )
    return (embedding_s, *([layer_s] * spec.layers), head_s)


def least_seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the least seconds of this process's processor time that ``run`` takes.

    Other programs on the machine can make a run longer, never shorter, and processor time leaves
    out what they take. Of ``repeats`` runs after one to warm up; or the first run alone, if it
    takes `LONG_PASS_S`.
    """
    first = _seconds(run)
    if first >= LONG_PASS_S:
        return first
    return min(_seconds(run) for _ in range(repeats))


def _seconds(run: Callable[[], object]) -> float:
    begin = process_time()
    run()
    return process_time() - begin


def _pass(stage: Stage, x: Tensor, gradient: Tensor | None, targets: Tensor | None) -> None:
    result = stage(x)
    if targets is not None:
        result = summed_loss(result, targets)
    if result.requires_grad:
        result.backward(gradient)


def _single_parts() -> tuple[StageSlice, StageSlice, StageSlice]:
    """Slices that hold the embedding alone, one layer alone and the head alone."""
    return (
        StageSlice(0, 3, 0, 0, embeds=True, has_head=False),
        StageSlice(1, 3, 0, 1, embeds=False, has_head=False),
        StageSlice(2, 3, 1, 1, embeds=False, has_head=True),
    )


def _analytic_costs(spec: ModelSpec) -> tuple[float, ...]:
    embedding, layer, head = (float(flops_per_token(spec, part)) for part in _single_parts())
    return (embedding, *([layer] * spec.layers), head)
