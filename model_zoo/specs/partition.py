"""Cuts a model into stages so that the slowest stage is as cheap as possible.

What counts is the FLOPs of the embedding, of every layer and of the head. All layers cost the same,
so each in turn goes to the stage that has least: that is best, for the dearest stage and for all
others (B. Fox, "Discrete Optimization Via Marginal Analysis", 1966).
"""

from heapq import heapify, heapreplace

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice


def cut(spec: ModelSpec, stages: int) -> tuple[int, ...]:
    """Return layers per stage such that the most expensive stage is as cheap as possible.

    Args:
        spec: the model.
        stages: from 1 to `spec.layers`; every stage gets at least one layer.

    Raises:
        ValueError: the number of stages does not fit.
    """
    if not 1 <= stages <= spec.layers:
        raise ValueError(f"{spec.layers} layers make 1 to {spec.layers} stages, not {stages}")
    return spread(*_part_flops(spec), spec.layers, stages)


def spread(
    embedding: float, layer: float, head: float, layers: int, stages: int
) -> tuple[int, ...]:
    """Return layers per stage, of parts that cost as much as is given."""
    costs = [layer] * stages
    costs[0] += embedding
    costs[-1] += head
    counts = [1] * stages
    lightest = [(cost, -stage) for stage, cost in enumerate(costs)]  # of equal ones the last
    heapify(lightest)
    for _ in range(layers - stages):
        cost, place = lightest[0]
        counts[-place] += 1
        heapreplace(lightest, (cost + layer, place))
    return tuple(counts)


def _part_flops(spec: ModelSpec) -> tuple[float, float, float]:
    """Return the FLOPs per token of the embedding alone, one layer alone and the head alone."""
    parts = (
        StageSlice(0, 3, 0, 0, embeds=True, has_head=False),
        StageSlice(1, 3, 0, 1, embeds=False, has_head=False),
        StageSlice(2, 3, 1, 1, embeds=False, has_head=True),
    )
    embedding, layer, head = (float(flops_per_token(spec, part)) for part in parts)
    return embedding, layer, head
