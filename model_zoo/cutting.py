"""Measures the cost of a model's parts, by which ``specs/partition.py`` cuts it into stages."""

from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.partition import single_parts
from model_zoo.stages import Stage, build_stage, summed_loss
from model_zoo.threads import limited_threads

LONG_PASS_S = 2.0
"""What a warm-up saves does not show in a pass of so long."""


def measure_costs(spec: ModelSpec, microbatch: int, repeats: int = 5) -> tuple[float, ...]:
    """Return the seconds of forward plus backward of every part: embedding, layers, head.

    Only one layer is measured, because all are alike. One thread.

    Args:
        spec: the model.
        microbatch: sequences of full context per pass.
        repeats: each result is the median of so many passes, after one warm-up; of a part whose
            first pass takes `LONG_PASS_S`, that one is the result.
    """
    tokens = torch.zeros((microbatch, spec.context), dtype=torch.int64)
    hidden = torch.randn(
        (microbatch, spec.context, spec.width), generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    fed = ((tokens, hidden.detach(), None), (hidden, hidden.detach(), None), (hidden, None, tokens))
    with limited_threads(1):
        embedding_s, layer_s, head_s = (  # one part at a time is in memory
            _median_seconds(build_stage(spec.untied, part, seed=0), *given, repeats)
            for part, given in zip(single_parts(), fed, strict=True)
        )
    return (embedding_s, *([layer_s] * spec.layers), head_s)


def _median_seconds(
    stage: Stage, x: Tensor, gradient: Tensor | None, targets: Tensor | None, repeats: int
) -> float:
    first = _pass_seconds(stage, x, gradient, targets)
    if first >= LONG_PASS_S:
        return first
    return median(_pass_seconds(stage, x, gradient, targets) for _ in range(repeats))


def _pass_seconds(
    stage: Stage, x: Tensor, gradient: Tensor | None, targets: Tensor | None
) -> float:
    begin = perf_counter()
    result = stage(x)
    if targets is not None:
        result = summed_loss(result, targets)
    if result.requires_grad:
        result.backward(gradient)
    return perf_counter() - begin
