"""Cuts the blocks of a stage by `parallelize_module`: each rank computes some heads, and some
columns of the feed-forward part.

A rank holds the rows of the first matrices of attention and feed-forward that make its heads and
columns, and the columns of the second ones that take them. All ranks run all sequences; what they
make of a block's half is summed, twice a block and pass, so their links should be fast. Embedding,
head and norms are whole at each.

Source: Shoeybi et al., arXiv 1909.08053 (Megatron-LM), section 3; PyTorch's
`torch.distributed.tensor.parallel`.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from client.compute.cut_stage import CutStage, shapes_of
from client.compute.cuttable import FIRST, FUSED, SECOND
from client.compute.sharding import make_real
from client.compute.team import LEADER, Ring
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice

_OF_OWN_HEADS = re.compile(r"blocks\.\d+\.attn\.(q_norm|k_norm)\.weight")
"""At all ranks, and each has its gradient from its own heads."""


class TensorParallel:
    """See the module's docstring; a `Cutting`."""

    def __init__(self, ring: Ring, spec: ModelSpec) -> None:
        self.ring, self._spec = ring, spec
        self._mesh = init_device_mesh(ring.device.type, (ring.size,))

    def cut(self, spec: ModelSpec, part: StageSlice) -> CutStage:
        """Return a stage cut over the ranks, with parameters of zero; all do it together."""
        stage = shapes_of(spec, part)
        for unit in stage.units:
            make_real(unit, self.ring.device)
        for block in stage.blocks.values():
            self._cut_block(block)
        return stage

    def _cut_block(self, block: nn.Module) -> None:
        plan: dict[str, ParallelStyle] = {
            name: RowwiseParallel() if name in ("attn.out", "ffn.down") else ColwiseParallel()
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear)
        }
        parallelize_module(block, self._mesh, plan)
        attention = block.get_submodule("attn")
        attention.take_heads_of(self.ring.size)  # type: ignore[operator]

    def parts(self, name: str, whole: Tensor, rank: int) -> list[Tensor]:
        """Return what a rank holds: queries, keys and values of its heads are three views."""
        size = self.ring.size
        if FUSED.fullmatch(name):
            spec = self._spec
            keys = spec.kv_heads * spec.head_width
            groups = torch.split(whole, [len(whole) - 2 * keys, keys, keys])
            return [group.chunk(size)[rank] for group in groups]
        if FIRST.fullmatch(name):
            return [whole.chunk(size)[rank]]
        if SECOND.fullmatch(name):
            return [whole.chunk(size, dim=1)[rank]]
        return [whole]

    def counts(self, name: str, rank: int) -> bool:
        """Whether a rank's gradient of a parameter is a part of the whole one, and no copy."""
        if rank == LEADER:
            return True
        cut = (FUSED, FIRST, SECOND, _OF_OWN_HEADS)
        return any(pattern.fullmatch(name) for pattern in cut)
