"""`torch.compile` of a stage's blocks, when it is opened.

All blocks of a kind are compiled as one, for the shape of a microbatch; what was compiled is in a
folder that survives restarts. The compiled blocks' numbers are compared with the uncompiled ones'.
Whatever fails, the stage runs uncompiled, and says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor, nn

from client.compute.device import warm_up
from client.compute.errors import ComputeError
from client.compute.replica import Replica, is_out_of_memory
from client.compute.requests import OpenStage
from client.devices import MOST_DEVICES
from model_zoo.models.documents import Documents
from model_zoo.specs.precision import Precision
from model_zoo.stages import Runner, Stage, run_block

TOLERANCE: Final[dict[Precision, float]] = {"fp32": 1e-4, "bf16": 1e-2}
"""Largest relative L2 distance of a compiled block's output or gradient from the uncompiled one's:
a part of what audits allow, so that a compiled and an uncompiled replica agree."""

Run = Callable[[nn.Module, Tensor], Tensor]


class CompiledBlocks:
    """Runs blocks compiled where they get the shape that was compiled, else as they are."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = torch.Size(shape)
        self._run = compiled(run_alone)
        self.usable = True

    def __call__(self, block: nn.Module, x: Tensor, documents: Documents | None) -> Tensor:
        """Run a block: hidden (B, T, C) to hidden."""
        if self.usable and documents is None and x.shape == self.shape:
            return self._run(block, x)
        return run_block(block, x, documents)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledBlocks:
        """Copies of a stage share what is compiled."""
        return self

    def gives_up(self, error: Exception) -> bool:
        """Whether compiled blocks ran, and failed as nothing else would: they are not run again."""
        if not self.usable or isinstance(error, ComputeError) or is_out_of_memory(error):
            return False
        self.usable = False
        return True


def compile_blocks(request: OpenStage, replica: Replica) -> str:
    """Have a replica's blocks run compiled, where that is asked for; it takes minutes at first.
    Return what came of it, in words: empty where nobody asked for it."""
    asked, device = request.settings.compile, replica.wire.device
    if asked == "off" or (asked == "auto" and device.type != "cuda"):
        return ""
    if reason := _hopeless(request, device):
        return f"blocks run uncompiled: {reason}"
    try:
        _prepare(request.compile_folder)
        run = request.manifest
        shape = run.sequences_per_microbatch, run.model.context, run.model.width
        _compile(CompiledBlocks(shape), replica)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines[0] if lines else type(error).__name__)[:300]
        replica.module.runner = run_block
        return f"blocks run uncompiled: {reason}"
    return "blocks run compiled"


def _hopeless(request: OpenStage, device: torch.device) -> str:
    """Return why nothing needs to be tried; empty: it may work."""
    if request.manifest.data.masked:
        return "conversations have lengths that change"
    if isinstance(request.manifest.model.experts, msgspec.Struct):
        return "a mixture of experts sends tokens where their numbers say"
    if device.type == "mps":
        return "that is not done on Apple's GPUs"
    return ""


def _prepare(folder: str) -> None:
    """Have torch keep what it compiles in ``folder``, and compile in this process alone, unless its
    own variable says otherwise."""
    # First, for torch reads the names while it is imported: one that cannot be made breaks it.
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
    threads = os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    from torch._dynamo import config as dynamo
    from torch._inductor import config

    dynamo.recompile_limit = 8 * MOST_DEVICES  # the usual number, for each card
    config.compile_threads = int(threads)
    config.fx_graph_cache = True
    config.cpp.dynamic_threads = True  # the owner may change their number later


def compiled(run: Run) -> Run:
    """Return a function that is compiled when it is first called, for the shapes it gets then."""
    made: Run = torch.compile(run, dynamic=False, fullgraph=True)
    return made


def run_alone(block: nn.Module, x: Tensor) -> Tensor:
    """Run a block on sequences that are one document each."""
    return run_block(block, x, None)


def _compile(blocks: CompiledBlocks, replica: Replica) -> None:
    """Compile the blocks, compare their numbers, and have the replica run them; raises
    `ArithmeticError`."""
    stage, shape = replica.module, blocks.shape
    apart = max(
        _distance(ours, right)
        for block in stage.blocks.values()
        for ours, right in zip(
            _numbers(stage, block, blocks, shape),
            _numbers(stage, block, run_block, shape),
            strict=True,
        )
    )
    if not apart <= TOLERANCE[stage.precision]:
        raise ArithmeticError(f"compiled ones compute other numbers, {apart:.1g} apart")
    stage.runner = blocks
    warm_up(replica)


def _numbers(stage: Stage, block: nn.Module, run: Runner, shape: torch.Size) -> list[Tensor]:
    """Run a block in all ways in which a stage does, on random numbers (B, T, C); return its output
    without and with a graph, and all gradients."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x = x.to(next(block.parameters()).device)
    with torch.no_grad(), stage.computing(x.device):
        alone = run(block, x, None)
    x.requires_grad_()
    with stage.computing(x.device):
        output = run(block, x, None)
    trained = [x, *(each for each in block.parameters() if each.requires_grad)]
    gradients = torch.autograd.grad(output, trained, torch.ones_like(output))
    return [alone, output.detach(), *gradients]


def _distance(ours: Tensor, right: Tensor) -> float:
    """Relative L2 distance; infinite where a number is not finite."""
    if not bool(torch.isfinite(ours).all()):
        return float("inf")
    size = float(torch.linalg.vector_norm(right.double()))
    apart = float(torch.linalg.vector_norm((ours - right).double()))
    return apart / size if size else apart
