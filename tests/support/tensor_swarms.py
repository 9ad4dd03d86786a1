"""Swarms of real executors in the simulator, and the single-process oracle they have to equal."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from torch import Tensor

from client.compute.codecs.blocks import rounding_key
from client.lab.reference import WireContext, train_reference
from client.lab.simulate.tensors import SWARM, tensor_world
from client.lab.simulate.training import TrainingWorld
from model_zoo.datasets.build import build
from model_zoo.datasets.mix import mix
from model_zoo.specs.architecture import Experts, Lora
from model_zoo.specs.codec import AveragingCodec, Codec
from model_zoo.specs.data import DataSpec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import Narrow
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.slices import narrow_layers
from protocol.manifest import Manifest
from tests.support.codecs import decode, encode
from tests.support.compute_stages import small_run
from tests.support.texts import corpus_of

SPECS = {
    "gpt": ModelSpec("gpt", 4, 32, 2, 2, 64, context=16),
    "llama": ModelSpec("llama", 4, 32, 2, 1, 48, context=16),
    "tied": ModelSpec("gpt", 4, 32, 2, 2, 64, context=16, tied=True),
    "mixtral": ModelSpec(
        "mixtral", 4, 32, 2, 1, 24, context=16, experts=Experts(4, 2, balance=0.05)
    ),
    "lora": ModelSpec(
        "llama",
        4,
        32,
        2,
        1,
        48,
        context=16,
        lora=Lora(4, 64.0, ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")),
    ),
    "lora nf4": ModelSpec(
        *("llama", 4, 32, 2, 1, 48),
        context=16,
        lora=Lora(4, 64.0, ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"), "nf4"),
    ),
    "narrow": ModelSpec(
        "llama", 4, 32, 2, 1, 48, context=16, narrow=Narrow(8, narrow_layers((1, 1, 1, 1)))
    ),
}
CUTS = {1: (4,), 2: (2, 2), 4: (1, 1, 1, 1)}
LIMIT_S = 3600.0
"""Virtual seconds a run may take."""


def plan_for(model: str, stages: int, steps: int) -> Manifest:
    """Four microbatches of two sequences per step; a learning rate at which losses really fall."""
    optimizer = OptimizerSpec(1e-3, 1e-4, warmup_steps=5, decay_steps=steps, beta2=0.95)
    return small_run(
        CUTS[stages],
        model=SPECS[model],
        optimizer=optimizer,
        steps=steps,
        microbatches=4,
        sequences=2,
    )


def write_text(folder: Path) -> DataSpec:
    """Words of a small made-up vocabulary: learnable, and the same on every machine."""
    source = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(source.choices(letters, k=source.randint(2, 8))) for _ in range(60)]
    (path := folder / "words").write_text(" ".join(source.choices(words, k=3000)))
    return build([path], folder / "text").index.spec


def write_conversations(folder: Path) -> DataSpec:
    """Small sums with their results, in windows of 16 bytes; some ask for longer answers."""
    rows = folder / "sums.jsonl"
    pairs = [(a, b) for a in range(20) for b in range(20)]
    lines = ({"prompt": f"{a}+{b}=", "completion": f"{a + b}" + "!" * (b % 5)} for a, b in pairs)
    rows.write_text("\n".join(map(json.dumps, lines)))
    out = folder / "text"
    return build([rows], out, context=16).index.spec


def write_mixed_conversations(folder: Path) -> DataSpec:
    """Sums, and twice as often as those the few words of greetings, whose answers are longer."""
    write_conversations(folder)
    (folder / "text").rename(folder / "sums")
    rows = folder / "greetings.jsonl"
    lines = ({"prompt": f"hi {n}!", "completion": "good day" * (n % 2 + 1)} for n in range(12))
    rows.write_text("\n".join(map(json.dumps, lines)))
    build([rows], folder / "greetings", context=16)
    choices = [(folder / "sums", Fraction(1)), (folder / "greetings", Fraction(2))]
    return mix(choices, folder / "text").index.spec


def through(codec: Codec, x: Tensor, place: WireContext) -> Tensor:
    """A boundary tensor after the wire."""
    key = rounding_key(SWARM, place.step, place.microbatch, place.boundary + 1)
    return decode(encode(x, codec, place.direction, key), x.shape, codec, place.direction)


def largest_difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Largest relative difference over the steps."""
    pairs = zip(losses, expected, strict=True)
    return max(abs(loss - other) / abs(other) for loss, other in pairs)


@dataclass
class Lab:
    """One training text, and the reference runs on it that were asked for so far."""

    folder: Path
    data: DataSpec
    """What a manifest would say of the text."""
    references: dict[tuple[Manifest, Codec], tuple[float, ...]] = field(default_factory=dict)

    @property
    def text(self) -> Path:
        """The data folder."""
        return self.folder / "text"

    def reference(self, plan: Manifest, boundary: Codec = "fp32") -> tuple[float, ...]:
        """Losses of the oracle, with the wire simulated if it is lossy."""
        key = (plan, boundary)
        if key not in self.references:
            wire = None if boundary == "fp32" else partial(through, boundary)
            corpus = corpus_of(str(self.text))
            self.references[key] = train_reference(plan, corpus, wire=wire, threads=1).losses
        return self.references[key]

    def world(
        self,
        plan: Manifest,
        replicas: int,
        *,
        boundary: Codec = "fp32",
        averaging: AveragingCodec = "fp32",
        seed: int = 0,
    ) -> TrainingWorld:
        """A swarm with its clock running."""
        run = replace(plan, data=self.data, boundary_codec=boundary, averaging_codec=averaging)
        world = tensor_world(run, self.text, self.folder, replicas=replicas, seed=seed)
        world.start_clock()
        return world


def train(world: TrainingWorld) -> list[float]:
    """Run to the end; the loss of every step. I1, I2 and I5 are checked on the way."""
    world.run(LIMIT_S)
    return [world.losses[step] for step in range(world.config.steps)]


def train_through_a_death(world: TrainingWorld, expected: Sequence[float]) -> list[float]:
    """As ``train``, where one of the last stage dies: a step that its sibling completed for it may
    have no loss, for that of the dead one's microbatches is told to nobody. The losses after the
    step show its result.
    """
    world.run(LIMIT_S)
    unsaid = set(range(world.config.steps)) - set(world.losses)
    assert len(unsaid) <= 1
    assert world.config.steps - 1 not in unsaid
    return [world.losses.get(step, expected[step]) for step in range(world.config.steps)]
