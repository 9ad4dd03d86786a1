"""The cost of each stage of a cut: measured on the founder's machine, or computed.

A volunteer states the FLOP/s that it reaches when multiplying matrices. No stage reaches that
speed, the ends even less than the middle: a lookup moves memory, small layers are mostly overhead.
So a stage's cost is its *time*: seconds of forward and backward here, times the FLOP/s that this
machine reaches in the same measurement that volunteers make. A volunteer's FLOP/s divided by this
cost is then its expected microbatches per second, and the costs of stages are proportional to their
seconds.

Every distinct kind of stage (embedding end, middle, head end, by number of layers) is run as a
whole where that is quick, otherwise added up from its parts. Seconds are of the processor, and the
least of several runs, because other programs may run meanwhile. Costs are counted where a layer is
so large that measuring takes long, which reaches nearly the speed of plain products of matrices;
and where what was measured is not credible. Imports torch; holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from client.cli.founding.price_table import StagePrice
from client.compute.device import probe
from client.compute.requests import Probe
from client.train.machine.capacity import PROBE_SIZES
from model_zoo.cutting import least_seconds, measure_costs
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice, slices, stage_parameter_count
from model_zoo.stages import build_stage, summed_loss
from model_zoo.threads import limited_threads

PART_REPEATS = 3
STAGE_REPEATS = 5
WHOLE_UP_TO_S = 1.0
"""Stages that take longer are added up from their parts: their overhead is small."""
MEASURED_UP_TO_S = 5.0
"""Costs of models are counted of which a layer and the head take longer."""
MEASURED_PARAMETERS = 200_000_000
"""And of those of which they have more parameters, which take long to draw."""
FAR = 4.0
"""Factor between the measured and the estimated seconds of a stage beyond which neither this
machine nor the model explains the difference."""
OVERHEAD_S = 0.005
"""What the many small operations of a stage may take."""
PARAMETER_S = 4e-9
"""What reading a parameter and writing its gradient may take."""

Kind = tuple[bool, int, bool]
"""Whether it has the embedding, its layers, whether it has the head."""


class Prices:
    """Seconds of the parts of a model on this machine, and this machine's speed."""

    def __init__(
        self, spec: ModelSpec, sequences: int, parts: tuple[float, ...], flop_per_s: float
    ) -> None:
        self._spec, self._sequences = spec, sequences
        self.parts = parts
        """Of the embedding, every layer and the head."""
        self.flop_per_s = flop_per_s
        self._seconds: dict[Kind, float] = {}

    @classmethod
    def measured(cls, spec: ModelSpec, sequences: int) -> Prices | None:
        """Measure a model's parts; None: they are too large, so costs are counted."""
        speed = machine_speed()
        parts = part_seconds(spec, sequences, speed)
        return None if parts is None else cls(spec, sequences, parts, speed)

    def seconds(self, part: StageSlice) -> float:
        """Return the seconds that a stage takes for one microbatch."""
        kind = (part.embeds, part.last_layer - part.first_layer, part.has_head)
        if kind not in self._seconds:
            self._seconds[kind] = self._measure(part)
        return self._seconds[kind]

    def credible(self, part: StageSlice) -> bool:
        """Whether a stage's seconds are about what its operations suggest."""
        counted = flops_per_token(self._spec, part) * self._sequences * self._spec.context
        least_s = counted / self.flop_per_s
        most_s = least_s + OVERHEAD_S + PARAMETER_S * stage_parameter_count(self._spec, part)
        return least_s / FAR <= self.seconds(part) <= FAR * most_s

    def _measure(self, part: StageSlice) -> float:
        first, last = 1 + part.first_layer, 1 + part.last_layer
        ends = part.embeds * self.parts[0] + part.has_head * self.parts[-1]
        added = sum(self.parts[first:last]) + ends
        if added > WHOLE_UP_TO_S:
            return added
        return min(added, stage_seconds(self._spec, part, self._sequences))


def part_seconds(
    spec: ModelSpec, sequences: int, flop_per_s: float, up_to_s: float = MEASURED_UP_TO_S
) -> tuple[float, ...] | None:
    """Return the measured seconds of the embedding, every layer and the head, on one thread; None:
    they are so large that it would take long.

    Args:
        spec: shape of the model.
        sequences: sequences per microbatch.
        flop_per_s: of this machine, to tell how long it would take.
        up_to_s: seconds that one layer and the head may take.
    """
    (one,) = slices((1,))
    single = msgspec.structs.replace(spec, layers=1)
    pass_s = flops_per_token(single, one) * sequences * spec.context / flop_per_s
    large = stage_parameter_count(single, one) > MEASURED_PARAMETERS
    if large or pass_s > up_to_s:
        return None
    return measure_costs(spec, sequences, repeats=PART_REPEATS)


def machine_speed() -> float:
    """Return the FLOP/s of one thread, measured as a volunteer measures itself."""
    probed = probe(Probe(sizes=PROBE_SIZES, device="cpu", threads=1))
    return max(rate.flop_per_s for rate in probed.rates if rate.dtype == "float32")


def stage_seconds(spec: ModelSpec, part: StageSlice, sequences: int) -> float:
    """Return the seconds of a stage's forward and backward on one thread.

    Args:
        spec: shape of the model.
        part: the stage.
        sequences: sequences per microbatch.
    """
    stage = build_stage(spec, part, seed=0)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((sequences, spec.context, spec.width), generator=generator)
    tokens = torch.zeros((sequences, spec.context), dtype=torch.int64)
    source = tokens if part.embeds else hidden.clone().requires_grad_()

    def run() -> None:
        result = stage(source)
        if part.has_head:
            torch.autograd.backward(summed_loss(result, tokens))
        else:
            torch.autograd.backward(result, hidden)

    with limited_threads(1):
        return least_seconds(run, STAGE_REPEATS)


def price(
    spec: ModelSpec, parts: Sequence[StageSlice], sequences: int, prices: Prices | None
) -> tuple[StagePrice, ...]:
    """Return the price of every stage of a cut; without ``prices`` they are computed.

    Args:
        spec: shape of the model.
        parts: the stages of the cut.
        sequences: sequences per microbatch.
        prices: measured seconds of the model's parts; None: count FLOPs instead.
    """
    return tuple(_price(spec, part, sequences, prices) for part in parts)


def _price(spec: ModelSpec, part: StageSlice, sequences: int, prices: Prices | None) -> StagePrice:
    counted = float(flops_per_token(spec, part) * sequences * spec.context)
    seconds = None if prices is None else prices.seconds(part)
    return StagePrice(
        stage=part.index,
        layers=part.last_layer - part.first_layer,
        flops=counted if prices is None or seconds is None else seconds * prices.flop_per_s,
        counted_flops=counted,
        seconds=seconds,
    )
