"""Cuts a stage by FSDP2's `fully_shard`: each rank holds some rows of every parameter.

The units are the embedding, each block, and the head with its loss. For as long as a unit is
computed all ranks have the whole of it, and its gradients are summed on the way to the ranks that
hold their rows. Each rank runs a part of the sequences, so all can be busy only where a microbatch
has as many.

Source: Zhao et al., arXiv 2304.11277; PyTorch's `torch.distributed.fsdp`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from client.compute.cut_stage import CutStage
from client.compute.team import Ring
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice


class FullShards:
    """Cuts stages over ``ring``."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._mesh = init_device_mesh(ring.device.type, (ring.size,))

    def cut(self, spec: ModelSpec, part: StageSlice) -> CutStage:
        """Return a stage cut over the ranks, with parameters of zero; all do it together.

        At no time a rank has more than one unit of it whole.
        """
        with torch.device("meta"):
            stage = CutStage(spec, part)
        for unit in stage.units:
            _make_real(unit, self.ring.device)
            sharded = fully_shard(unit, mesh=self._mesh, reshard_after_forward=True)
            sharded.set_gradient_divide_factor(1.0)  # a sum over sequences, not a mean over ranks
            sharded.set_force_sum_reduction_for_comms(True)
        _share_buffers(list(stage.units))
        return stage


def _make_real(unit: nn.Module, device: torch.device) -> None:
    """Give a part of a stage that has shapes only parameters of zero, on a device."""
    for module in unit.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.zeros(parameter.shape, device=device)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))


def _share_buffers(units: list[nn.Module]) -> None:
    """Let units free each other's buffers, as those of one model do.

    Each is run by itself. Without this each keeps its whole gradient, as it is sent, until the pass
    has ended: together as much as the stage.
    """
    share = getattr(fsdp, "share_comm_ctx", None)  # earlier versions have none
    if share is not None:
        share(units)
