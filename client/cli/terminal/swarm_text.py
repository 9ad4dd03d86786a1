"""What a swarm is and takes, in the lines that ``create`` and ``join`` show."""

from collections.abc import Iterable, Iterator
from typing import Final

from client.cli.terminal.mixture_text import describe_mixture
from client.quantities import plural
from client.views.words import duration as human_duration
from client.views.words import size as human_bytes
from model_zoo.specs.aggregation import DEFAULT as SUM
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.codec import CODECS
from model_zoo.specs.optimizer import DEFAULT, DEFAULT_SCHEDULE
from model_zoo.specs.precision import Compute
from protocol.ids import SwarmId
from protocol.manifest import Manifest

INDENT: Final = " " * 13
"""Where the words begin, behind what they are about."""
SLOW_LINE_BYTES_PER_S: Final = 2.5e6
"""20 Mbit/s, the upload of many homes."""
NODE_BYTES: Final = 100_000_000
WORKER_BYTES: Final = 350_000_000
"""What our processes hold before they train, most of it torch: the node, and a worker a stage;
``volunteer status`` shows the same two amounts as they are measured."""
COMPUTES: Final[dict[Compute, str]] = {
    "fp32": "",
    "bf16": "; passes compute in bf16",
    "auto": "; passes compute in bf16 on cards, in fp32 elsewhere",
}


def summary(manifest: Manifest, swarm: SwarmId) -> Iterator[str]:
    """Yield what a volunteer must know of a swarm before it joins, line by line."""
    model, data = manifest.model, manifest.data
    admitted = "those whom a member invites" if manifest.policy.private else "anybody"
    purpose = f", for {manifest.purpose}" if manifest.purpose else ""
    yield f"The swarm {manifest.name} ({swarm[:12]}), open to {admitted}{purpose}:"
    yield f"  founder    {manifest.founder}"
    step = "step" if manifest.local_rounds is None else "round"
    tokens = manifest.tokens_per_step
    yield (
        f"  model      {model.architecture}, {model.parameter_count:,} parameters in "
        f"{plural(manifest.stage_count, 'stage')}; {plural(manifest.steps, step)} of {tokens:,} "
        "tokens"
    )
    if manifest.start:
        sizes = " + ".join(human_bytes(start.size_bytes) for start in manifest.start)
        begins = "begins     with imported" if model.lora is None else "frozen     are imported"
        yield f"  {begins} weights, by stage {sizes}; a member copies those of its stage"
    yield f"  data       {data.name}, {human_bytes(data.kept_bytes)}; every member can read it"


def introduction(manifest: Manifest, swarm: SwarmId) -> Iterator[str]:
    """Yield the description of a swarm, line by line."""
    yield from summary(manifest, swarm)
    if words := describe_mixture(manifest, manifest.steps):
        yield f"{INDENT}{words}"
    yield from _model(manifest)
    yield from _run(manifest)


def _model(manifest: Manifest) -> Iterator[str]:
    model = manifest.model
    yield (
        f"  layers     {' + '.join(map(str, manifest.layers_per_stage))}, width {model.width}, "
        f"context {model.context}"
        f"{'; the embedding is the output projection' if model.tied else ''}"
    )
    if (experts := model.experts) is not None:
        yield (
            f"{INDENT}a token passes {experts.active} of {experts.count} experts in each layer: "
            f"{model.active_parameter_count:,} parameters of all"
        )
    if (lora := model.lora) is not None:
        trained = sum(stage.parameters for stage in manifest.stages)
        yield (
            f"  trained    adapters of rank {lora.rank} of {', '.join(lora.targets)}: {trained:,} "
            f"parameters, {trained / model.parameter_count:.2%} of the model's; all else is "
            f"frozen, in {lora.base}"
        )


def _run(manifest: Manifest) -> Iterator[str]:
    rounds = manifest.local_rounds
    step, averaged = ("step", "gradients") if rounds is None else ("round", "these steps")
    rule = manifest.optimizer
    schedule = "" if rule.schedule == DEFAULT_SCHEDULE else f", schedule {rule.schedule}"
    if rule.name != DEFAULT or schedule:
        yield f"  updates    by {rule.name}{schedule}"
    if rounds is not None:
        own = plural(rounds.inner_microbatches, "microbatch", "microbatches")
        yield f"  rounds     local: a volunteer takes a step of its own after {own}"
    if manifest.aggregation != SUM:
        about = RULES[manifest.aggregation].about
        yield f"  averaging  {manifest.aggregation}: {averaged} are {about}"
    most = max(stage.parameters for stage in manifest.stages)
    size = most * CODECS[manifest.averaging_codec].bytes_per_number
    narrow = manifest.model.narrow
    numbers = "" if narrow is None else f" of {narrow.width} numbers a token"
    yield (
        f"  on wires   {manifest.boundary_codec}{numbers}; in a {step} two volunteers of a stage "
        f"send each other {human_bytes(size)} at most, "
        f"{human_duration(size / SLOW_LINE_BYTES_PER_S)} on a line of 20 Mbit/s"
        f"{COMPUTES[manifest.compute]}"
    )
    if manifest.audits:
        yield (
            f"  audits     others of a stage see and recompute {manifest.audits:.0%} of what one "
            "computed"
        )
    if (terms := manifest.evaluation) is not None:
        yield f"  evaluated  every {terms.every} steps, on {terms.tokens:,} tokens held out"


def memory_words(stages: Iterable[float]) -> str:
    """Return the memory that a volunteer takes at least, for the largest of these stages: of a
    stage, and of the program beside it; ``stages``: bytes of each."""
    stage = WORKER_BYTES + max(stages)
    return f"about {human_bytes(NODE_BYTES)}, and {human_bytes(stage)} or more a stage"
