"""The manifest in the worker's terms: which stage to open, with what, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from client.compute.memory import MemoryNeed, graphs_that_fit, required_bytes
from client.compute.requests import OpenStage
from client.config import Settings
from client.errors import ExitCode, UserError
from model_zoo.specs.data import DataSpec
from protocol.manifest import Manifest

MOST_GRAPHS = 16
"""More forward graphs than this are never in flight at one replica."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a stage fits."""

    graphs: int
    """Forward graphs that can be kept."""
    size_bytes: int
    """Memory it takes at most, with them."""
    reruns_blocks: bool = False
    """Whether graphs keep the blocks' inputs alone: a whole one does not fit."""


def stage_need(
    manifest: Manifest, stage: int, graphs: int = 1, *, reruns_blocks: bool = False
) -> MemoryNeed:
    """Return the memory of a replica of a stage that keeps ``graphs`` forward graphs.

    ``manifest`` has the model and the cut, ``stage`` is the index of the stage; with
    ``reruns_blocks`` graphs keep the blocks' inputs alone.
    """
    return required_bytes(
        manifest.model,
        layers_per_stage=manifest.layers_per_stage,
        stage=stage,
        sequences=manifest.sequences_per_microbatch,
        tokens=manifest.model.context,
        graphs_kept=graphs,
        averaging_codec=manifest.averaging_codec,
        state=manifest.state,
        aggregation=manifest.aggregation_name,
        precision=manifest.precision,
        reruns_blocks=reruns_blocks,
    )


def fit_stage(manifest: Manifest, stage: int, available_bytes: int, spare_bytes: int = 0) -> Fit:
    """Return how a stage fits into memory.

    Args:
        manifest: of the swarm.
        stage: the stage.
        available_bytes: memory for it.
        spare_bytes: part of these left to another stage, if one graph can be kept without it.

    Raises:
        UserError: it does not fit.
    """
    for reruns_blocks in (False, True):
        need = stage_need(manifest, stage, reruns_blocks=reruns_blocks)
        graphs = min(graphs_that_fit(need, available_bytes), MOST_GRAPHS)
        if graphs < 0:
            continue
        frugal = graphs_that_fit(need, available_bytes - spare_bytes)
        if 1 <= frugal < graphs:
            graphs = frugal
        taken = stage_need(manifest, stage, graphs, reruns_blocks=reruns_blocks)
        return Fit(graphs, taken.total_bytes, reruns_blocks)
    raise UserError(
        f"stage {stage} needs {_mib(need.total_bytes)} of memory, "
        f"{_mib(available_bytes)} may be used",
        "raise --memory-limit, close other programs, or join a swarm with more stages",
        ExitCode.CONFIG,
    )


def check_fits(manifest: Manifest, available_bytes: int) -> None:
    """Check that this machine has memory for one stage at least.

    Raises:
        UserError: for none; says what the last one tried needs.
    """
    for stage in range(manifest.stage_count):
        try:
            fit_stage(manifest, stage, available_bytes)
        except UserError:
            if stage == manifest.stage_count - 1:
                raise
        else:
            return


def open_stage_request(
    manifest: Manifest,
    swarm: str,
    stage: int,
    settings: Settings,
    fit: Fit,
    corpus: str,
    threads: int,
    most_threads: int = 0,
) -> OpenStage:
    """Return the request that opens a stage in a worker.

    Args:
        manifest: of the swarm.
        swarm: its id.
        stage: the stage.
        settings: the owner's limits and device.
        fit: how it fits into memory.
        corpus: path of the training text; empty: not needed.
        threads: threads to compute with.
        most_threads: threads that it may be told to use later; 0: no more.
    """
    return OpenStage(
        swarm=swarm,
        model=manifest.model,
        layers_per_stage=list(manifest.layers_per_stage),
        stage=stage,
        seed=manifest.seed,
        imported=manifest.start is not UNSET,
        optimizer=manifest.optimizer,
        precision=manifest.precision,
        boundary_codec=manifest.boundary_codec,
        averaging_codec=manifest.averaging_codec,
        aggregation=manifest.aggregation_name,
        delayed=manifest.delayed,
        sequences=manifest.sequences_per_microbatch,
        tokens=manifest.model.context,
        graphs_kept=fit.graphs,
        reruns_blocks=fit.reruns_blocks,
        threads=threads,
        most_threads=most_threads,
        choose_threads=not settings.threads,
        compute_share=settings.compute_share,
        memory_bytes=settings.memory_limit_bytes,
        vram_share=settings.vram_share,
        device=settings.device,
        corpus=corpus,
        tokenizer=manifest.data.tokenizer_name,
        token_data=token_data(manifest),
    )


def token_data(manifest: Manifest) -> DataSpec | None:
    """Return what the manifest says of its tokens; None: it names a text."""
    return manifest.data if manifest.data.source == "tokens" else None


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
