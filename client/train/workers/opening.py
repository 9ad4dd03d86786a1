"""The manifest in the worker's terms: which stage to open, with what, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from client.compute.memory import MemoryNeed, graphs_that_fit, required_bytes
from client.compute.requests import Offload, OpenStage
from client.config import Settings
from client.errors import ExitCode, UserError
from client.train.workers.offloading import NOWHERE, Offloading, SlowMemory
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
    offload: Offload = "off"
    """Where the vectors lie but the parameters: beside them, if they fit there."""
    offload_folder: str = ""
    offloaded_bytes: int = 0


def stage_need(
    manifest: Manifest,
    stage: int,
    graphs: int = 1,
    *,
    reruns_blocks: bool = False,
    offload: bool = False,
) -> MemoryNeed:
    """Return the memory of a replica of a stage that keeps ``graphs`` forward graphs.

    ``manifest`` has the model and the cut, ``stage`` is the index of the stage; with
    ``reruns_blocks`` graphs keep the blocks' inputs alone, with ``offload`` all vectors but the
    parameters lie elsewhere.
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
        offload=offload,
    )


def fit_stage(
    manifest: Manifest,
    stage: int,
    available_bytes: int,
    spare_bytes: int = 0,
    offloading: Offloading = NOWHERE,
) -> Fit:
    """Return how a stage fits into memory: with whole graphs, else with its blocks run again, else
    with its vectors offloaded.

    Args:
        manifest: of the swarm.
        stage: the stage.
        available_bytes: memory for it.
        spare_bytes: part of these left to another stage, if one graph can be kept without it.
        offloading: where its vectors may lie instead.

    Raises:
        UserError: it does not fit.
    """
    for place in _places(manifest, stage, offloading):
        for reruns_blocks in (False, True):
            how = {"reruns_blocks": reruns_blocks, "offload": place is not None}
            need = stage_need(manifest, stage, **how)
            graphs = min(graphs_that_fit(need, available_bytes), MOST_GRAPHS)
            if graphs < 0:
                continue
            frugal = graphs_that_fit(need, available_bytes - spare_bytes)
            if 1 <= frugal < graphs:
                graphs = frugal
            taken = stage_need(manifest, stage, graphs, **how).total_bytes
            if place is None:
                return Fit(graphs, taken, reruns_blocks)
            away = need.offloaded_bytes
            return Fit(graphs, taken, reruns_blocks, place.kind, place.folder, away)
    least = stage_need(manifest, stage, reruns_blocks=True, offload=bool(offloading.places))
    elsewhere = f" and {_mib(least.offloaded_bytes)} of disk" if offloading.places else ""
    raise UserError(
        f"stage {stage} needs {_mib(least.total_bytes)} of memory{elsewhere}, "
        f"{_mib(available_bytes)} may be used",
        "raise --memory-limit, close other programs, or join a swarm with more stages",
        ExitCode.CONFIG,
    )


def _places(manifest: Manifest, stage: int, offloading: Offloading) -> list[SlowMemory | None]:
    """Where the vectors of a stage may lie, in order; None: beside the parameters."""
    found: list[SlowMemory | None] = [] if offloading.always else [None]
    away = stage_need(manifest, stage, offload=True).offloaded_bytes
    if (place := offloading.place_for(away)) is not None:
        found.append(place)
    return found


def check_fits(
    manifest: Manifest, available_bytes: int, offloading: Offloading = NOWHERE
) -> list[bool]:
    """Check that this machine has memory for one stage at least; return for which it has.

    Raises:
        UserError: for none; says what the last one tried needs.
    """
    found: list[bool] = []
    for stage in range(manifest.stage_count):
        try:
            fit_stage(manifest, stage, available_bytes, offloading=offloading)
        except UserError:
            if stage == manifest.stage_count - 1 and not any(found):
                raise
            found.append(False)
        else:
            found.append(True)
    return found


def open_stage_request(
    manifest: Manifest,
    swarm: str,
    stage: int,
    settings: Settings,
    fit: Fit,
    corpus: str,
    threads: int,
    most_threads: int = 0,
    compile_folder: str = "",
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
        compile_folder: of compiled blocks; empty: there are none.
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
        offload=fit.offload,
        offload_folder=fit.offload_folder,
        compile=settings.compile,
        compile_folder=compile_folder,
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
