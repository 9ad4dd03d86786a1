"""The cost of each stage of a cut: measured on the founder's machine, or computed.

A volunteer states the FLOP/s that it reaches when multiplying matrices. No stage reaches that
speed, the ends even less than the middle: a lookup moves memory, small layers are mostly overhead.
So a stage's cost is its *time*: seconds of forward and backward here, times the FLOP/s that this
machine reaches in the same measurement that volunteers make. A volunteer's FLOP/s divided by this
cost is then its expected microbatches per second, and the costs of stages are proportional to their
seconds.

Every distinct kind of stage (embedding end, middle, head end, by number of layers) is run once as a
whole where that is quick, otherwise added up from its parts. Imports torch; holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from client.cli.founding.price_table import StagePrice
from client.cli.terminal.output import say
from client.compute.device import probe
from client.compute.requests import Probe
from client.train.machine.capacity import PROBE_SIZES
from model_zoo.cutting import measure_costs
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice
from model_zoo.stages import Stage, build_stage, summed_loss
from model_zoo.threads import limited_threads

PART_REPEATS = 3
LARGE_PARAMETERS = 100_000_000
STAGE_REPEATS = 5
WHOLE_UP_TO_S = 1.0
"""Stages that take longer are added up from their parts: their overhead is small."""

Kind = tuple[bool, int, bool]
"""Whether it has the embedding, its layers, whether it has the head."""


class Prices:
    """Seconds of the parts of a model on this machine, and this machine's speed."""

    def __init__(self, spec: ModelSpec, sequences: int) -> None:
        self._spec, self._sequences = spec, sequences
        self.parts = part_seconds(spec, sequences)
        """Of the embedding, every layer and the head."""
        self.flop_per_s = machine_speed()
        self._seconds: dict[Kind, float] = {}

    def seconds(self, part: StageSlice) -> float:
        """Return the seconds that a stage takes for one microbatch."""
        kind = (part.embeds, part.last_layer - part.first_layer, part.has_head)
        if kind not in self._seconds:
            self._seconds[kind] = self._measure(part)
        return self._seconds[kind]

    def _measure(self, part: StageSlice) -> float:
        first, last = 1 + part.first_layer, 1 + part.last_layer
        ends = part.embeds * self.parts[0] + part.has_head * self.parts[-1]
        added = sum(self.parts[first:last]) + ends
        return added if added > WHOLE_UP_TO_S else stage_seconds(self._spec, part, self._sequences)


def part_seconds(spec: ModelSpec, sequences: int) -> tuple[float, ...]:
    """Return the measured seconds of the embedding, every layer and the head, on one thread.

    Where that may take a minute the user is told first.

    Args:
        spec: shape of the model.
        sequences: sequences per microbatch.
    """
    if spec.parameter_count >= LARGE_PARAMETERS:
        say("measuring a large model's parts, which may take a minute; --no-measure skips it")
    return measure_costs(spec, sequences, repeats=PART_REPEATS)


def machine_speed() -> float:
    """Return the FLOP/s of one thread, measured as a volunteer measures itself."""
    probed = probe(Probe(sizes=PROBE_SIZES, device="cpu", threads=1))
    return max(rate.flop_per_s for rate in probed.rates if rate.dtype == "float32")


def stage_seconds(spec: ModelSpec, part: StageSlice, sequences: int) -> float:
    """Return the median seconds of a stage's forward and backward on one thread.

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
    with limited_threads(1):
        taken = [_once(stage, source, tokens, hidden) for _ in range(STAGE_REPEATS + 1)]
    return median(taken[1:])


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


def _once(stage: Stage, source: Tensor, tokens: Tensor, hidden: Tensor) -> float:
    """Seconds of one forward and backward pass; gradients are those of the boundary's shape."""
    begin = perf_counter()
    result = stage(source)
    if stage.part.has_head:
        torch.autograd.backward(summed_loss(result, tokens))
    else:
        torch.autograd.backward(result, hidden)
    return perf_counter() - begin
