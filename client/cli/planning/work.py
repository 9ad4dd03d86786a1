"""The costs of a model's stages, for any cut: measured, counted, or founded.

Imports torch. Costs are in the unit of the manifest: seconds on one thread of this machine times
the FLOP/s that it reaches (``pricing``), or FLOPs counted. A manifest gives the costs of its own
stages; other cuts are counted and scaled to its total. Measuring takes a few seconds: models of
which one layer with the head takes longer than half a second are counted.
"""

from __future__ import annotations

from client.cli.founding.fitting import stage_too_large
from client.cli.founding.manifest import stage_cost
from client.cli.founding.options import RunChoices
from client.cli.founding.price_table import StagePrice
from client.cli.founding.pricing import machine_speed, part_seconds
from client.compute.memory import USUAL_GRAPHS, required_bytes
from client.plan.machines import StageWork
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.partition import cut
from model_zoo.specs.slices import StageSlice, slices
from protocol.manifest import Manifest, StageCost, fits_a_frame

MEASURED_UP_TO_S = 0.5


class ModelWorks:
    """The ``Works`` of one model under given codecs.

    Args:
        model: shape of the model.
        run: codecs, and whether to measure.
        sequences: per microbatch.
    """

    def __init__(self, model: ModelSpec, run: RunChoices, sequences: int) -> None:
        self._spec, self._run, self._sequences = model, run, sequences
        self._scale = 1.0
        self._founded: Manifest | None = None
        self._parts = _measured(model, sequences) if run.measure else None

    @classmethod
    def of(cls, manifest: Manifest, run: RunChoices) -> ModelWorks:
        """Return the works of a founded swarm."""
        works = cls(manifest.model, run, manifest.sequences_per_microbatch)
        counted = sum(works._flops(part) for part in slices(manifest.layers_per_stage))
        works._scale = sum(stage.flops for stage in manifest.stages) / max(counted, 1.0)
        works._founded = manifest
        return works

    def __call__(self, stages: int) -> list[StageWork] | None:
        """Return every stage's work; None for a cut or microbatch that no manifest may have."""
        spec, founded = self._spec, self._founded
        if stages > spec.layers or not fits_a_frame(spec, self._sequences):
            return None
        if founded is not None and stages == founded.stage_count:
            layers = founded.layers_per_stage
            return [self._work(layers, s, cost) for s, cost in enumerate(founded.stages)]
        layers = cut(spec, self._parts, stages)
        if any(stage_too_large(spec, part) for part in slices(layers)):
            return None
        return [self._work(layers, p.index, self._cost(layers, p)) for p in slices(layers)]

    def flops_per_token(self) -> float:
        """Return the cost of the whole model for one token."""
        (whole,) = slices((self._spec.layers,))
        return self._flops(whole) / (self._sequences * self._spec.context)

    def _flops(self, part: StageSlice) -> float:
        if parts := self._parts:
            ends = part.embeds * parts[0] + part.has_head * parts[-1]
            return ends + sum(parts[1 + part.first_layer : 1 + part.last_layer])
        tokens = self._sequences * self._spec.context
        return self._scale * flops_per_token(self._spec, part) * tokens

    def _cost(self, layers: tuple[int, ...], part: StageSlice) -> StageCost:
        flops = self._flops(part)
        priced = StagePrice(part.index, layers[part.index], flops, flops, None)
        return stage_cost(self._spec, layers, part, priced, self._run, self._sequences)

    def _work(self, layers: tuple[int, ...], stage: int, cost: StageCost) -> StageWork:
        need = required_bytes(
            self._spec,
            layers_per_stage=layers,
            stage=stage,
            sequences=self._sequences,
            tokens=self._spec.context,
            graphs_kept=USUAL_GRAPHS,
            averaging_codec=self._run.sent_codec,
            state=self._run.state,
            aggregation=self._run.rule,
            precision=self._run.compute_dtype,
        )
        sizes = need.fixed_bytes, need.graph_bytes, need.total_bytes
        return StageWork(cost, *map(float, sizes))


def _measured(spec: ModelSpec, sequences: int) -> tuple[float, ...] | None:
    """Return the cost of embedding, layers and head; None: they are large, so costs are counted."""
    speed = machine_speed()
    seconds = part_seconds(spec, sequences, speed, MEASURED_UP_TO_S)
    return None if seconds is None else tuple(speed * each for each in seconds)
