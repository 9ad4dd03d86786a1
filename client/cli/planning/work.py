"""The costs of a model's stages, for any cut and microbatch: measured, computed, or founded.

Imports torch. Costs are in the unit of the manifest: seconds on one thread of this machine times
the FLOP/s that it reaches (``pricing``), or FLOPs counted. A manifest gives the costs of its own
stages; other cuts are counted and scaled to its total. Measuring takes some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from client.cli.founding.fitting import stage_too_large
from client.cli.founding.manifest import stage_cost
from client.cli.founding.options import RunChoices
from client.cli.founding.price_table import StagePrice
from client.cli.founding.pricing import machine_speed, part_seconds
from client.compute.memory import USUAL_GRAPHS, MemoryNeed, required_bytes
from client.plan.machines import Cut, StageWork
from client.train.workers.devices import PINNED, why_uncut
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.partition import cut
from model_zoo.specs.slices import StageSlice, slices
from protocol.manifest import Manifest, StageCost, fits_a_frame

MEASURED_UP_TO_S = 0.5
"""Microbatches of which a layer would take longer are scaled from the largest measured one."""


class ModelWorks:
    """The ``Works`` of one model under given codecs.

    Args:
        model: shape of the model.
        run: codecs, and whether to measure.
        sizes: sequences per microbatch to measure.
        devices: the numbers of devices that may cut a stage.
    """

    def __init__(
        self,
        model: ModelSpec,
        run: RunChoices,
        sizes: Iterable[int],
        devices: Iterable[int] = (),
    ) -> None:
        self._spec, self._run = model, run
        self._devices = sorted({count for count in devices if count > 1})
        self._scale = 1.0
        self._founded: Manifest | None = None
        self._parts = _measure(self, sorted(set(sizes))) if run.measure else {}

    @classmethod
    def of(cls, manifest: Manifest, run: RunChoices, devices: Iterable[int] = ()) -> ModelWorks:
        """Return the works of a founded swarm."""
        works = cls(manifest.model, run, (), devices)
        sequences = manifest.sequences_per_microbatch
        counted = sum(works._flops(part, sequences) for part in slices(manifest.layers_per_stage))
        works._scale = sum(stage.flops for stage in manifest.stages) / max(counted, 1.0)
        works._founded = manifest
        return works

    def __call__(self, stages: int, sequences: int) -> list[StageWork] | None:
        """Return every stage's work; None for a cut or microbatch that no manifest may have."""
        spec = self._spec
        if stages > spec.layers or not fits_a_frame(spec, sequences):
            return None
        founded = self._founded
        if founded is not None and (stages, sequences) == (
            founded.stage_count,
            founded.sequences_per_microbatch,
        ):
            layers = founded.layers_per_stage
            return [self._work(layers, s, sequences, c) for s, c in enumerate(founded.stages)]
        layers = cut(spec, self._parts.get(sequences), stages)
        costs = [self._cost(layers, part, sequences) for part in slices(layers)]
        if any(stage_too_large(spec, part) for part in slices(layers)):
            return None
        return [self._work(layers, s, sequences, c) for s, c in enumerate(costs)]

    def flops_per_token(self, sequences: int) -> float:
        """Return the cost of the whole model for one token."""
        (whole,) = slices((self._spec.layers,))
        return self._flops(whole, sequences) / (sequences * self._spec.context)

    def _flops(self, part: StageSlice, sequences: int) -> float:
        if parts := self._parts.get(sequences):
            ends = part.embeds * parts[0] + part.has_head * parts[-1]
            return ends + sum(parts[1 + part.first_layer : 1 + part.last_layer])
        tokens = sequences * self._spec.context
        return self._scale * flops_per_token(self._spec, part) * tokens

    def _cost(self, layers: tuple[int, ...], part: StageSlice, sequences: int) -> StageCost:
        flops = self._flops(part, sequences)
        priced = StagePrice(part.index, layers[part.index], flops, flops, None)
        return stage_cost(self._spec, layers, part, priced, self._run, sequences)

    def _work(
        self, layers: tuple[int, ...], stage: int, sequences: int, cost: StageCost
    ) -> StageWork:
        reckon = partial(
            required_bytes,
            self._spec,
            layers_per_stage=layers,
            stage=stage,
            sequences=sequences,
            tokens=self._spec.context,
            averaging_codec=self._run.sent_codec,
            state=self._run.state,
            aggregation=self._run.rule,
            precision=self._run.compute_dtype,
        )
        need = reckon(graphs_kept=USUAL_GRAPHS)
        away = reckon(graphs_kept=0, reruns_blocks=True, offload=True)
        return StageWork(
            cost,
            float(need.fixed_bytes),
            float(need.graph_bytes),
            float(need.total_bytes),
            float(away.total_bytes),
            float(PINNED * away.offloaded_bytes),
            tuple(
                self._cut(reckon, devices, sequences, whole=len(layers) == 1)
                for devices in self._devices
            ),
        )

    def _cut(
        self,
        reckon: Callable[..., MemoryNeed],
        devices: int,
        sequences: int,
        *,
        whole: bool,
    ) -> Cut:
        """Return what a stage needs that is cut over devices; ``reckon`` is `required_bytes` of
        it."""
        why = why_uncut(
            self._spec,
            ranks=devices,
            sequences=sequences,
            delayed=bool(self._run.delayed_update),
            whole=whole,
        )
        if why:
            return Cut(devices, why)
        reckon = partial(reckon, graphs_kept=0, ranks=devices)
        with_host = reckon(host=True)
        return Cut(
            devices,
            fixed_bytes=float(with_host.fixed_bytes),
            graph_bytes=float(with_host.graph_bytes),
            rerun_bytes=float(reckon(reruns_blocks=True, host=True).total_bytes),
            host_bytes=float(with_host.offloaded_bytes),
            share_bytes=float(reckon().fixed_bytes - with_host.fixed_bytes),
            work=devices * -(-sequences // devices) / sequences,
        )


def _measure(works: ModelWorks, sizes: list[int]) -> dict[int, tuple[float, ...]]:
    """Return the cost of embedding, layers and head in FLOPs for each microbatch size; empty: they
    are so large that costs are counted."""
    spec, speed = works._spec, machine_speed()
    found: dict[int, tuple[float, ...]] = {}
    base = seconds = None
    for size in sizes:
        if base is None or seconds is None or seconds[1] * size / base <= MEASURED_UP_TO_S:
            base, seconds = size, part_seconds(spec, size, speed) or seconds
        if seconds is None:
            return {}
        found[size] = tuple(speed * each * size / base for each in seconds)
    return found
