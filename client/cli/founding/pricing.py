"""The cost of each stage of a cut: measured on the founder's machine, or computed.

A volunteer states the FLOP/s that it reaches when multiplying matrices. No stage reaches that
speed, the ends even less than the middle: a lookup moves memory, small layers are mostly overhead.
So a stage's cost is its *time*: seconds of forward and backward here, times the FLOP/s that this
machine reaches in the same measurement that volunteers make. A volunteer's FLOP/s divided by this
cost is then its expected microbatches per second, and the costs of stages are proportional to their
seconds.

Embedding, layers and head are run once each; a stage takes what its parts take. Seconds are of the
processor, and the least of several runs, because other programs may run meanwhile. Costs are
counted where a layer is so large that measuring takes long, which reaches nearly the speed of plain
products of matrices; and where what was measured is not credible. Imports torch; holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from client.compute.device import probe
from client.compute.requests import Probe
from client.train.machine.capacity import PROBE_SIZES
from model_zoo.cutting import measure_costs
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice, slices, stage_parameter_count

REPEATS = 3
MEASURED_UP_TO_S = 2.0
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


@dataclass(frozen=True)
class Prices:
    """Seconds of the parts of a model on one thread of this machine, and its speed."""

    parts: tuple[float, ...]
    """Of the embedding, every layer and the head."""
    flop_per_s: float

    def seconds(self, part: StageSlice) -> float:
        """Return the seconds that a stage takes for one microbatch."""
        ends = part.embeds * self.parts[0] + part.has_head * self.parts[-1]
        return ends + sum(self.parts[1 + part.first_layer : 1 + part.last_layer])


def measure(spec: ModelSpec, sequences: int) -> Prices | None:
    """Measure a model's parts; None: they are so large that it would take long."""
    speed = machine_speed()
    (one,) = slices((1,))
    single = msgspec.structs.replace(spec, layers=1)
    pass_s = flops_per_token(single, one) * sequences * spec.context / speed
    large = stage_parameter_count(single, one) > MEASURED_PARAMETERS
    if large or pass_s > MEASURED_UP_TO_S:
        return None
    return Prices(measure_costs(spec, sequences, repeats=REPEATS), speed)


def machine_speed() -> float:
    """Return the FLOP/s of one thread, measured as a volunteer measures itself."""
    probed = probe(Probe(sizes=PROBE_SIZES, device="cpu", threads=1))
    return max(rate.flop_per_s for rate in probed.rates if rate.dtype == "float32")


def credible(spec: ModelSpec, part: StageSlice, sequences: int, prices: Prices) -> bool:
    """Whether a stage's measured seconds are about what its operations suggest."""
    least_s = flops_per_token(spec, part) * sequences * spec.context / prices.flop_per_s
    most_s = least_s + OVERHEAD_S + PARAMETER_S * stage_parameter_count(spec, part)
    return least_s / FAR <= prices.seconds(part) <= FAR * most_s


def stage_flops(spec: ModelSpec, part: StageSlice, sequences: int, prices: Prices | None) -> float:
    """Return what a microbatch of a stage costs; without ``prices`` it is counted."""
    if prices is not None:
        return prices.seconds(part) * prices.flop_per_s
    return float(flops_per_token(spec, part) * sequences * spec.context)
