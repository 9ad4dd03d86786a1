"""Measures the cost of a model's parts, by which ``specs/partition.py`` cuts it into stages."""

from collections.abc import Callable
from functools import partial
from time import process_time

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
            for part, given in zip(single_parts(), fed, strict=True)
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
