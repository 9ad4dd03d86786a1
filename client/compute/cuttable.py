"""Which stages can be cut over the ranks of a group, and how; pure, no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from client.compute.requests import Inside
from model_zoo.specs.architecture import Tensors
from model_zoo.specs.model import ModelSpec

Share = Literal["all", "heads", "rows", "columns"]
"""What a rank has of a parameter where heads, inner columns and experts are dealt out."""
_IN_BLOCK = re.compile(r"blocks\.\d+\.(.+)\.(weight|bias)")
_SHARES: dict[str, Share] = {
    "attn.qkv": "heads",
    "attn.out": "columns",
    "ffn.up": "rows",
    "ffn.gate": "rows",
    "ffn.down": "columns",
}
_SHARES_OF_EXPERTS: dict[str, Share] = {"ffn.gate_up": "rows", "ffn.down": "rows"}
"""An expert's matrices are rows of larger ones."""


def why_not(
    model: ModelSpec,
    inside: Inside,
    *,
    ranks: int,
    sequences: int,
    delayed: bool,
    whole: bool,
) -> str:
    """Return why stages of a model cannot be cut so; empty: they can.

    Args:
        model: the whole model.
        inside: how its stages shall be cut.
        ranks: over which.
        sequences: of a microbatch.
        delayed: whether updates are delayed by one step.
        whole: whether there is only one stage.
    """
    if inside == "replicas":
        return ""
    if model.lora is not None:
        return "what is frozen beside adapters is not cut"
    if delayed:
        return "updates are delayed by one step, which needs two points of each parameter"
    if inside == "tp":
        return _why_not_tensors(model, ranks)
    if whole and model.tied:
        return "the only stage's output projection is its embedding"
    if sequences < ranks:
        return f"a microbatch has {sequences} sequences, and each rank needs at least one"
    return ""


def _why_not_tensors(model: ModelSpec, ranks: int) -> str:
    if model.qk_norm == "projection":
        return "it normalises the queries of all heads together"
    counts = {"heads": model.heads, "key/value heads": model.kv_heads}
    if model.experts is None:
        counts["inner columns"] = model.ffn_width
    else:
        counts["experts"] = model.experts.count
    for what, count in counts.items():
        if count % ranks:
            return f"its {count} {what} cannot be divided by {ranks}"
    return ""


def share(model: ModelSpec, name: str) -> Share:
    """Return what a rank has of a parameter of a stage, cut with "tp".

    Args:
        model: the whole model.
        name: as in `stage_tensors`.
    """
    found = _IN_BLOCK.fullmatch(name)
    if found is None or (found[2] == "bias" and _SHARES.get(found[1]) == "columns"):
        return "all"  # a bias behind the sum over columns is added once
    experts = {} if model.experts is None else _SHARES_OF_EXPERTS
    return {**_SHARES, **experts}.get(found[1], "all")


def held_parameters(
    model: ModelSpec,
    layers_per_stage: Sequence[int],
    stage: int,
    inside: Inside,
    *,
    ranks: int,
    rank: int = 0,
) -> int:
    """Return how many parameters of a stage a rank holds; the first one holds most.

    Args:
        model: the whole model.
        layers_per_stage: the cut into stages.
        stage: index of the stage.
        inside: how it is cut over the ranks.
        ranks: over which.
        rank: the rank.
    """

    def held(tensors: Tensors) -> int:
        return sum(
            _held(model, name, tuple(shape), inside, ranks, rank) for name, shape in tensors.items()
        )

    count = layers_per_stage[stage] * held(model.layer_tensors(0))
    count += held(model.embedding_tensors) if stage == 0 else 0
    return count + (held(model.head_tensors) if stage == len(layers_per_stage) - 1 else 0)


def _held(
    model: ModelSpec, name: str, shape: tuple[int, ...], inside: Inside, ranks: int, rank: int
) -> int:
    if inside == "fsdp":
        most = -(-shape[0] // ranks)
        return min(most, max(0, shape[0] - rank * most)) * math.prod(shape[1:])
    divided = inside == "tp" and share(model, name) != "all"
    return math.prod(shape) // (ranks if divided else 1)
