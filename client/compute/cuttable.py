"""Which stages can be cut over the ranks of a group, and how; pure, no torch."""

from __future__ import annotations

from msgspec import UNSET

from client.compute.requests import Inside
from model_zoo.specs.model import ModelSpec


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
    if model.lora is not UNSET:
        return "what is frozen beside adapters is not cut"
    if delayed:
        return "updates are delayed by one step, which needs two points of each parameter"
    if inside == "tp":
        return _why_not_tensors(model, ranks)
    if whole and model.tied is True:
        return "the only stage's output projection is its embedding"
    if sequences < ranks:
        return f"a microbatch has {sequences} sequences, and each rank needs at least one"
    return ""


def _why_not_tensors(model: ModelSpec, ranks: int) -> str:
    if model.experts is not UNSET:
        return "its feed-forward parts are mixtures of experts"
    if model.qk_norm == "projection":
        return "it normalises the queries of all heads together"
    counts = {
        "heads": model.heads,
        "key/value heads": model.kv_heads,
        "inner columns": model.ffn_width,
    }
    for what, count in counts.items():
        if count % ranks:
            return f"its {count} {what} cannot be divided by {ranks}"
    return ""
