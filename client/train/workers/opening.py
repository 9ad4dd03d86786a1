"""The manifest in the worker's terms: which stage to open, with what, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from client.compute.memory import USUAL_GRAPHS, MemoryNeed, graphs_that_fit, required_bytes
from client.compute.requests import Inside, Offload, OpenStage
from client.config import Settings
from client.errors import ExitCode, UserError
from client.train.workers.grouping import ALONE, Grouping
from client.train.workers.offloading import NOWHERE, Offloading, SlowMemory
from model_zoo.specs.data import DataSpec
from protocol.manifest import Manifest

MOST_GRAPHS = 16
"""More forward graphs than this are never in flight at one replica."""
_NUMBERS_OF_DEVICES = (2, 4, 8, 16)
_OTHER_SWARM = "join a swarm with more stages"


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
    inside: Inside = "replicas"
    """How the ranks of a group share it."""
    usual_bytes: int = 0
    """Memory that it usually takes: few graphs are in flight at once."""

    def at_once(self, ranks: int) -> int:
        """Return the microbatches that so many ranks run at a time."""
        return ranks if self.inside == "replicas" else 1


def stage_need(
    manifest: Manifest,
    stage: int,
    graphs: int = 1,
    *,
    reruns_blocks: bool = False,
    offload: bool = False,
    ranks: int = 1,
    inside: Inside = "fsdp",
    host: bool = False,
) -> MemoryNeed:
    """Return the memory of a replica of a stage that keeps ``graphs`` forward graphs.

    ``manifest`` has the model and the cut, ``stage`` is the index of the stage; with
    ``reruns_blocks`` graphs keep the blocks' inputs alone, with ``offload`` all vectors but the
    parameters lie elsewhere; with ``ranks`` it is cut over these (see `required_bytes`).
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
        aggregation=manifest.aggregation,
        precision=manifest.compute,
        reruns_blocks=reruns_blocks,
        offload=offload,
        ranks=ranks,
        inside=inside,
        host=host,
        z_loss=manifest.optimizer.z_loss > 0,
    )


def fit_stage(
    manifest: Manifest,
    stage: int,
    available_bytes: int,
    spare_bytes: int = 0,
    offloading: Offloading = NOWHERE,
    grouping: Grouping = ALONE,
) -> Fit:
    """Return how a stage fits into memory: with whole graphs, else with its blocks run again, else
    with its vectors offloaded, or cut over the ranks of a group.

    Args:
        manifest: of the swarm.
        stage: the stage.
        available_bytes: memory for it.
        spare_bytes: part of these left to another stage, if one graph can be kept without it.
        offloading: where its vectors may lie instead.
        grouping: the ranks, each with so much memory.

    Raises:
        UserError: it does not fit.
    """
    ways = grouping.ways(manifest, stage)
    if why := grouping.why_not(manifest, stage, ways[0]):
        words = f"stage {stage} cannot be cut over {grouping.ranks} devices: {why}"
        raise UserError(words, "use --inside auto or replicas", ExitCode.CONFIG)
    for inside in ways:
        if inside == "replicas":
            fit = _fit_whole(manifest, stage, available_bytes, spare_bytes, offloading)
        else:
            fit = _fit_cut(manifest, stage, inside, available_bytes, grouping)
        if fit is not None:
            return fit
    least = _least(manifest, stage, ways[-1], offloading, grouping)
    elsewhere, each = "", " of each device" if ways[-1] != "replicas" else ""
    if least.offloaded_bytes:
        where = "disk" if offloading.places else "the host's memory"
        elsewhere = f" and {_mib(least.offloaded_bytes)} of {where}"
    raise UserError(
        f"stage {stage} needs {_mib(least.total_bytes)} of memory{each}{elsewhere}, "
        f"{_mib(available_bytes)} may be used",
        _what_helps(manifest, stage, available_bytes, grouping, ways[-1]),
        ExitCode.CONFIG,
    )


def _what_helps(
    manifest: Manifest, stage: int, available_bytes: int, grouping: Grouping, tried: Inside
) -> str:
    """Say what lets a machine hold a stage that does not fit; ``tried`` is the last way to hold
    it."""
    usual = f"raise --memory-limit, close other programs or volunteers, or {_OTHER_SWARM}"
    if tried != "replicas":
        host_bytes = _least(manifest, stage, tried, NOWHERE, grouping).offloaded_bytes
        if host_bytes > grouping.host_bytes:
            lacks = _mib(host_bytes - grouping.host_bytes)
            return f"the host's memory lacks {lacks}: close other programs, or {_OTHER_SWARM}"
    wider = _more_devices(manifest, stage, available_bytes, grouping)
    if wider is not None:
        return f"{wider} such devices hold it together (--devices, --inside auto); or {usual}"
    if grouping.ranks > 1 and tried == "replicas" and grouping.inside == "auto":
        return f"its devices cannot cut it: {grouping.why_not(manifest, stage, 'fsdp')}; {usual}"
    return usual


def _more_devices(
    manifest: Manifest, stage: int, available_bytes: int, grouping: Grouping
) -> int | None:
    """Return the fewest devices like these that can hold a stage together; None: no number that is
    looked at, or they are one processor, whose memory does not grow with them."""
    if not grouping.host_bytes:
        return None
    for ranks in sorted({grouping.ranks, *_NUMBERS_OF_DEVICES}):
        if ranks < grouping.ranks:
            continue
        wider = replace(grouping, ranks=ranks, inside="auto")
        for inside in wider.ways(manifest, stage)[1:]:
            if _fit_cut(manifest, stage, inside, available_bytes, wider) is not None:
                return ranks
    return None


def _least(
    manifest: Manifest,
    stage: int,
    inside: Inside,
    offloading: Offloading,
    grouping: Grouping,
) -> MemoryNeed:
    """The least memory that a stage needs, in the last way in which it may be held here."""
    if inside == "replicas":
        return stage_need(manifest, stage, reruns_blocks=True, offload=bool(offloading.places))
    ranks, host = grouping.ranks, grouping.host_bytes > 0
    return stage_need(manifest, stage, reruns_blocks=True, ranks=ranks, inside=inside, host=host)


def _fit_cut(
    manifest: Manifest, stage: int, inside: Inside, available_bytes: int, grouping: Grouping
) -> Fit | None:
    ranks, host = grouping.ranks, grouping.host_bytes > 0
    need_with = partial(stage_need, manifest, stage, ranks=ranks, inside=inside, host=host)
    for reruns_blocks in (False, True):
        need = need_with(reruns_blocks=reruns_blocks)
        graphs = min(graphs_that_fit(need, available_bytes), MOST_GRAPHS)
        if graphs >= 0 and need.offloaded_bytes <= grouping.host_bytes:
            taken, usual = (
                need_with(kept, reruns_blocks=reruns_blocks).total_bytes
                for kept in (graphs, min(graphs, USUAL_GRAPHS))
            )
            return Fit(graphs, taken, reruns_blocks, inside=inside, usual_bytes=usual)
    return None


def _fit_whole(
    manifest: Manifest,
    stage: int,
    available_bytes: int,
    spare_bytes: int,
    offloading: Offloading,
) -> Fit | None:
    for place in _places(manifest, stage, offloading):
        for reruns_blocks in (False, True):
            away = place is not None
            need_with = partial(
                stage_need, manifest, stage, reruns_blocks=reruns_blocks, offload=away
            )
            need = need_with()
            graphs = min(graphs_that_fit(need, available_bytes), MOST_GRAPHS)
            if graphs < 0:
                continue
            frugal = graphs_that_fit(need, available_bytes - spare_bytes)
            if 1 <= frugal < graphs:
                graphs = frugal
            fit = Fit(
                graphs,
                need_with(graphs).total_bytes,
                reruns_blocks,
                usual_bytes=need_with(min(graphs, USUAL_GRAPHS)).total_bytes,
            )
            if place is None:
                return fit
            return replace(
                fit,
                offload=place.kind,
                offload_folder=place.folder,
                offloaded_bytes=need.offloaded_bytes,
            )
    return None


def _places(manifest: Manifest, stage: int, offloading: Offloading) -> list[SlowMemory | None]:
    """Where the vectors of a stage may lie, in order; None: beside the parameters."""
    found: list[SlowMemory | None] = [] if offloading.always else [None]
    away = stage_need(manifest, stage, offload=True).offloaded_bytes
    if (place := offloading.place_for(away)) is not None:
        found.append(place)
    return found


def check_fits(
    manifest: Manifest,
    available_bytes: int,
    offloading: Offloading = NOWHERE,
    grouping: Grouping = ALONE,
) -> list[bool]:
    """Check that this machine has memory for one stage at least; return for which it has.

    Raises:
        UserError: for none; says what the last one tried needs.
    """
    found: list[bool] = []
    for stage in range(manifest.stage_count):
        try:
            fit_stage(manifest, stage, available_bytes, 0, offloading, grouping)
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
        imported=bool(manifest.start),
        optimizer=manifest.optimizer,
        precision=manifest.compute,
        boundary_codec=manifest.boundary_codec,
        averaging_codec=manifest.averaging_codec,
        aggregation=manifest.aggregation,
        delayed=manifest.delayed_update,
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
        inside=fit.inside,
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
