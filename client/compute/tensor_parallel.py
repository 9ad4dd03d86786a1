"""Cuts the blocks of a stage by `parallelize_module`: each rank computes some heads, and some
columns of the feed-forward part, or some of its experts.

A rank holds the rows of the first matrices of attention and feed-forward that make its heads and
columns, and the columns of the second ones that take them. Experts are dealt out whole; each rank
has the router, and so knows which tokens come to its own. All ranks run all sequences; what they
make of a block's half is summed, twice a block and pass, so their links should be fast. Embedding,
head and norms are whole at each.

Sources: Shoeybi et al., arXiv 1909.08053 (Megatron-LM), section 3; Lepikhin et al., arXiv
2006.16668 (experts dealt out), but that tokens need not travel here; PyTorch's
`torch.distributed.tensor.parallel`.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from client.compute.cut_stage import CutStage, shapes_of
from client.compute.cuttable import share
from client.compute.sharding import make_real
from client.compute.team import LEADER, Ring
from model_zoo.models.mixture import Mixture
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice

_IN_PARTS = re.compile(r"blocks\.\d+\.(attn\.(q_norm|k_norm)|ffn\.router)\.weight")
"""At all ranks, and each has its gradient from its own heads or experts."""


class TensorParallel:
    """See the module's docstring; a `Cutting`."""

    def __init__(self, ring: Ring, spec: ModelSpec) -> None:
        self.ring, self._spec = ring, spec
        self._mesh = init_device_mesh(ring.device.type, (ring.size,))

    def cut(self, spec: ModelSpec, part: StageSlice) -> CutStage:
        """Return a stage cut over the ranks, with parameters of zero; all do it together.

        A rank never holds more than one block whole.
        """
        stage = shapes_of(spec, part)
        blocks = list(stage.blocks.values())
        for unit in stage.units:
            make_real(unit, self.ring.device)
            if unit in blocks:
                self._cut_block(unit)
        return stage

    def _cut_block(self, block: nn.Module) -> None:
        cut = [name for name, module in block.named_modules() if isinstance(module, nn.Linear)]
        if isinstance(mixture := block.get_submodule("ffn"), Mixture):
            self._deal_out(mixture)
            cut = [name for name in cut if not name.startswith("ffn.")]
        plan: dict[str, ParallelStyle] = {
            name: RowwiseParallel() if name in ("attn.out", "ffn.down") else ColwiseParallel()
            for name in cut
        }
        parallelize_module(block, self._mesh, plan)
        attention = block.get_submodule("attn")
        attention.take_heads_of(self.ring.size)  # type: ignore[operator]

    def _deal_out(self, mixture: Mixture) -> None:
        rank, size = self.ring.rank, self.ring.size
        mixture.take_experts_of(rank, size)
        for part in (mixture.gate_up, mixture.down):
            part.weight = nn.Parameter(part.weight.detach().chunk(size)[rank].clone())
        mixture.register_forward_pre_hook(lambda _, given: self._summed_back(*given))
        mixture.register_forward_hook(lambda _, given, result: self._summed(result))

    def _summed_back(self, x: Tensor) -> Tensor:
        """Return `x`, which is the same at all ranks, so that its gradients are summed."""
        same = DTensor.from_local(x, self._mesh, [Replicate()], run_check=False)
        return same.to_local(grad_placements=[Partial()])

    def _summed(self, part: Tensor) -> Tensor:
        """Return the sum of all ranks' parts, so that each has its gradient."""
        parts = DTensor.from_local(part, self._mesh, [Partial()], run_check=False)
        return parts.redistribute(placements=[Replicate()]).to_local()

    def parts(self, name: str, whole: Tensor, rank: int) -> list[Tensor]:
        """Return what a rank holds: queries, keys and values of its heads are three views."""
        size = self.ring.size
        match share(self._spec, name):
            case "heads":
                keys = self._spec.kv_heads * self._spec.head_width
                groups = torch.split(whole, [len(whole) - 2 * keys, keys, keys])
                return [group.chunk(size)[rank] for group in groups]
            case "rows":
                return [whole.chunk(size)[rank]]
            case "columns":
                return [whole.chunk(size, dim=1)[rank]]
            case "all":
                return [whole]

    def counts(self, name: str, rank: int) -> bool:
        """Whether a rank's gradient of a parameter is a part of the whole one, and no copy."""
        in_parts = share(self._spec, name) != "all" or _IN_PARTS.fullmatch(name) is not None
        return in_parts or rank == LEADER
