"""Makes a manifest from a founder's choices: fills in the preset, cuts the model, prices its
stages.

A stage costs the FLOPs that its operations take, so equal choices make equal stages on every
machine. Writes nothing but the weights of an imported model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from client.cli.founding.adapters import adapted
from client.cli.founding.averaging import (
    CHECKPOINT_EVERY,
    averaging_chosen,
    least_need,
    microbatch_sizes,
    rounds_chosen,
    run_s,
)
from client.cli.founding.evaluating import evaluation
from client.cli.founding.fitting import (
    check_stages,
    fewest_stages,
    what_is_smaller,
)
from client.cli.founding.importing import (
    check_vocabulary,
    imported_model,
    keep_starts,
    published_base,
)
from client.cli.founding.options import (
    ModelChoices,
    OptimizerChoices,
    PipelineChoices,
    RunChoices,
    admitted,
    refusals,
    usage,
)
from client.cli.founding.outlook import warn_of_few, warn_of_time
from client.cli.founding.presets import PRESETS, Preset
from client.cli.founding.tokenizing import READABLE, data_errors
from client.cli.terminal.mixture_text import warn_of_repeats
from client.compute.payload import Encoding
from client.store.texts import TextStore
from client.train.workers.opening import PINNED
from client.views.words import size as human_bytes
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import open_folder, proven_leaves
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.architecture import SWITCHES, Rope
from model_zoo.specs.data import DataSpec
from model_zoo.specs.families import ARCHITECTURES
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import Narrow, joined
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.optimizer import DEFAULT, OPTIMIZERS, OptimizerSpec
from model_zoo.specs.partition import cut
from model_zoo.specs.slices import StageSlice, narrow_layers, slices, stage_parameter_count
from model_zoo.specs.tokens import BYTE_VOCAB, token_bytes
from protocol.ids import PeerId
from protocol.manifest import Manifest, Policy, StageCost, inconsistency
from protocol.names import normal

if TYPE_CHECKING:
    from client.plan.model import Machine

TIED = (
    "the model's embedding is its output projection as well; here each is trained by itself, for "
    "they are on different machines, and begins as a copy; with --stages 1 they stay one"
)
UNREAD = DataSpec("text", 2**40, "0" * 64)
"""In place of the data of a run that is only planned: enough bytes for every context."""


@dataclass(frozen=True)
class Founding:
    """A manifest to be signed, and its facts for the founder."""

    manifest: Manifest
    warnings: tuple[str, ...]
    seconds: float | None = None
    """Of the run with volunteers like the founder; None: nothing was measured."""
    averaging: tuple[str, ...] = ()
    """Why it averages as it does, and the price, in lines."""


def found_swarm(
    founder: PeerId,
    run: RunChoices,
    model: ModelChoices,
    optimizer: OptimizerChoices,
    store: TextStore | None = None,
    machine: Callable[[], Machine] | None = None,
) -> Founding:
    """Build the manifest of a new swarm.

    Args:
        founder: peer id that signs the manifest.
        run: choices of the run; unset values are the preset's.
        model: choices of the model's shape.
        optimizer: choices of the optimizer.
        store: where to keep the weights of an imported model.
        machine: measures the founder's, by which the averaging is chosen where ``run`` does not
            say; None: then it is exact.

    Raises:
        UserError: the choices contradict each other (usage), or the data or the folder cannot be
            used (configuration).
    """
    if run.boundary_width is not None and (run.source is not None or run.stages == 1):
        raise usage(
            "--boundary-width is for new models in several stages: one stage has no boundary, and "
            "what an imported model's tokens are at one would have to be measured first",
            "leave it out",
        )
    with data_errors(READABLE):
        folder = open_folder(Path(run.data).expanduser())
        for _ in proven_leaves(folder):
            pass
        corpus = Corpus.from_folder(folder)
    if corpus.spec.answers is not None:  # conversations were cut for a context
        model = replace(model, context=model.context or corpus.spec.answers.context)
    founder_of = _Founder(founder, optimizer, corpus, machine if run.measure else None)
    with imported_model(run, model) as imported:
        if imported is None or run.source is None:
            if model.lora is not None:
                raise usage(
                    "--lora would train adapters of random weights",
                    "give the model with --from, or leave out --lora to train all of a new one",
                )
            preset = PRESETS[run.preset]
            spec = choose_model(preset, model, corpus.spec.vocab, run.stages)
            return founder_of.founding(run, spec)
        if store is None:
            raise ValueError("an imported model needs a store for its weights")
        check_vocabulary(imported, corpus.spec.vocab, brought=corpus.tokenizer is not None)
        spec = adapted(imported.spec, model, published_base(imported))
        founding = founder_of.founding(replace(run, optimizer=run.optimizer or DEFAULT), spec)
        layers = founding.manifest.layers_per_stage
        starts = keep_starts(imported, layers, run.source, store)
        manifest = checked(msgspec.structs.replace(founding.manifest, start=starts))
        notes = (TIED,) if imported.was_tied else ()
        return replace(founding, manifest=manifest, warnings=(*notes, *founding.warnings))


@dataclass(frozen=True)
class _Founder:
    """Builds manifests of swarms that begin with random weights; the fields are as in
    `found_swarm`."""

    peer: PeerId
    optimizer: OptimizerChoices
    corpus: Corpus
    machine: Callable[[], Machine] | None

    def founding(self, run: RunChoices, spec: ModelSpec) -> Founding:
        """Return the manifest; it is checked before the machine is measured."""
        provisional, _ = admitted(run, spec)
        draft = self._draft(provisional, spec)
        machine = None if self.machine is None else self.machine()
        local, _ = admitted(replace(run, averaging="local"), spec)
        drafts = [draft, *(_resized(draft, n) for n in microbatch_sizes(local, draft.model)[1:])]
        run, averaging = averaging_chosen(run, local, drafts, machine)
        run, notes = admitted(run, spec)
        if run.averaging == "local":
            run, price = rounds_chosen(run, drafts, machine)
            averaging = (*averaging, *price)
        manifest = self._draft(run, spec)
        if machine is not None and run.averaging == "local":
            notes = (*notes, *_fewer_stages(manifest, machine))
        seconds = None if machine is None else run_s(manifest, machine)
        warnings = (*notes, *_warnings(manifest), *warn_of_time(manifest, seconds))
        return Founding(manifest, warnings, seconds, averaging)

    def _draft(self, run: RunChoices, spec: ModelSpec) -> Manifest:
        """Return a manifest that every peer would accept."""
        check_stages(spec, run.stages)
        preset = PRESETS[run.preset]
        if run.microbatches_per_step < (needed := RULES[run.rule].robust_from):
            raise usage(
                f"{run.rule} compares {needed} volunteers of a stage or more, and "
                f"{run.microbatches_per_step} microbatches a step cannot be shared by so many",
                f"take --microbatches {needed} or more, many times as many if you can, or "
                "--aggregation sum",
            )
        with data_errors("choose another --data, or a shorter --context"):
            self.corpus.check(spec.context)
        steps, every = run.steps or preset.steps, run.checkpoint_every or CHECKPOINT_EVERY
        draft = drafted(
            *(run, spec, run.stages),
            name=run.swarm_name,
            founder=self.peer,
            created=int(time.time()),
            seed=run.seed,
            steps=steps,
            optimizer=choose_optimizer(preset, self.optimizer, steps, run.update_rule),
            data=self.corpus.spec,
            purpose=normal(run.purpose),
            policy=Policy(run.replicas, every, run.private, run.dual_homing),
        )
        evaluated = evaluation(run.evaluate_every, self.corpus, draft)
        return checked(msgspec.structs.replace(draft, evaluation=evaluated))


def drafted(run: PipelineChoices, spec: ModelSpec, stages: int, **more: Any) -> Manifest:
    """Return a manifest that says what decides how fast a swarm trains.

    Args:
        run: the choices; unset values are the preset's.
        spec: shape of the model.
        stages: how many to cut it into.
        more: its other fields, where it is to be founded, or others in place of these.

    Raises:
        UserError: the choices contradict each other, or the model cannot be cut like that.
    """
    chosen: dict[str, Any] = {
        "protocol": 1,
        "name": "draft",
        "founder": "",
        "created": 0,
        "seed": 0,
        "model": spec,
        "stages": (),
        "sequences_per_microbatch": run.sequences_per_microbatch,
        "microbatches_per_step": run.microbatches_per_step,
        "steps": PRESETS[run.preset].steps,
        "optimizer": OptimizerSpec(name=run.update_rule),
        "data": UNREAD,
        "boundary_codec": run.boundary_codec,
        "averaging_codec": run.sent_codec,
        "policy": Policy(run.replicas),
        "local_rounds": run.local_rounds,
        "compute": run.compute_dtype,
        "aggregation": run.rule,
        "audit_percent": run.audit or 0,
    }
    return recut(Manifest(**chosen | more), cut(spec, stages), run.boundary_width)


def recut(draft: Manifest, layers: Sequence[int], width: int | None) -> Manifest:
    """Return a draft in another cut, with what its stages cost.

    Args:
        draft: a manifest.
        layers: of each stage.
        width: of the boundaries between them; None: the model's.

    Raises:
        UserError: the model cannot have such boundaries.
    """
    spec = narrowed(draft.model, layers, width)
    counts = (stage_parameter_count(spec, part) for part in slices(layers))
    unknown = {"uplink_bytes": 1.0, "downlink_bytes": 1.0, "memory_bytes": 1.0}
    stages = (
        StageCost(layers=each, flops=1.0, parameters=count, **unknown)
        for each, count in zip(layers, counts, strict=True)
    )
    draft = msgspec.structs.replace(draft, model=spec, stages=tuple(stages))
    costs = (stage_cost(draft, part) for part in slices(layers))
    return msgspec.structs.replace(draft, stages=tuple(costs))


def _resized(draft: Manifest, sequences: int) -> Manifest:
    """Return a draft with microbatches of so many sequences, and what its stages cost then."""
    narrow = draft.model.narrow
    draft = msgspec.structs.replace(draft, sequences_per_microbatch=sequences)
    return recut(draft, draft.layers_per_stage, None if narrow is None else narrow.width)


def narrowed(spec: ModelSpec, layers_per_stage: Sequence[int], width: int | None) -> ModelSpec:
    """Return a model with boundaries of ``width`` numbers between its stages; None, or where it has
    one stage: with boundaries as wide as the model.

    Raises:
        UserError: it cannot have such boundaries.
    """
    narrow = None
    with refusals("take another --boundary-width, or leave it out"):
        if width is not None and len(layers_per_stage) > 1:
            narrow = Narrow(width, narrow_layers(layers_per_stage))
        return msgspec.structs.replace(spec, narrow=narrow)


def checked(manifest: Manifest) -> Manifest:
    """Return the manifest as every peer will decode it.

    Raises:
        UserError: a number is out of the range the protocol allows.
    """
    try:
        again = msgspec.convert(msgspec.to_builtins(manifest), Manifest)
    except msgspec.ValidationError as error:
        raise usage(f"a setting is out of range: {error}") from error
    problem = inconsistency(again)
    if problem:
        raise usage(problem)
    return again


def choose_model(
    preset: Preset,
    choices: ModelChoices,
    vocab: int = BYTE_VOCAB,
    stages: int | None = None,
) -> ModelSpec:
    """Return the preset's model with the founder's changes; dependent numbers follow.

    Args:
        preset: starting point.
        choices: the founder's changes; unset values are the preset's.
        vocab: number of tokens of the tokenizer.
        stages: of the run; a single one has both ends, which are tied where they were published so.

    Raises:
        UserError: the numbers do not make a valid model.
    """
    base = preset.model
    architecture = choices.architecture or base.architecture
    width = choices.width or base.width
    heads = choices.heads or base.heads
    same_shape = (architecture, width, heads) == (base.architecture, base.width, base.heads)
    usual_ffn_width = ARCHITECTURES[architecture].usual_ffn_width(width)
    ffn_width = base.ffn_width if same_shape else usual_ffn_width
    kv_heads = base.kv_heads if same_shape else heads
    switches = {name: getattr(base, name) for name in SWITCHES}
    if architecture != base.architecture:
        switches = {}
    elif not same_shape:
        switches |= {"head_dim": None, "rope": _rotated(base, width // heads)}
    if preset.tied and stages == 1:
        switches |= {"tied": True}
    with refusals():
        spec = ModelSpec(
            architecture=architecture,
            layers=choices.layers or base.layers,
            width=width,
            heads=heads,
            kv_heads=choices.kv_heads or kv_heads,
            ffn_width=choices.ffn_width or ffn_width,
            context=choices.context or base.context,
            vocab=vocab,
            rope_theta=base.rope_theta,
            **switches,
        )
    return adapted(spec, choices, "bf16")


def _rotated(base: ModelSpec, head_width: int) -> Rope:
    """Return the rotary positions for another width of heads: of each the same share is rotated."""
    dims = base.rope.dims
    if dims is None:
        return base.rope
    share = max(2, head_width * dims // base.head_width // 2 * 2)
    return msgspec.structs.replace(base.rope, dims=share if share < head_width else None)


def choose_optimizer(
    preset: Preset, choices: OptimizerChoices, steps: int, name: str = DEFAULT
) -> OptimizerSpec:
    """Return the preset's optimizer with the founder's changes.

    Warm-up and decay keep their share of the run when its length changes.

    Args:
        preset: starting point.
        choices: the founder's changes; unset values are the preset's.
        steps: length of the run in steps.
        name: of the optimizer.

    Raises:
        UserError: a number is out of range.
    """
    base = preset.optimizer
    usual = OPTIMIZERS[name].rate
    lr = base.lr * usual if choices.lr is None else choices.lr
    follows: dict[str, Any] = {
        "name": name,
        "lr": lr,
        "min_lr": min(base.min_lr * usual, lr),
        "weight_decay": base.weight_decay / usual,
        "beta1": OPTIMIZERS[name].beta1,
        "warmup_steps": -(-base.warmup_steps * steps // preset.steps),
        "decay_steps": max(1, round(base.decay_steps * steps / preset.steps)),
    }
    given = {name: value for name, value in vars(choices).items() if value is not None}
    with refusals():
        return msgspec.structs.replace(base, **follows | given)


def stage_cost(draft: Manifest, part: StageSlice) -> StageCost:
    """Return the costs of one stage for a microbatch."""
    spec, sequences = draft.model, draft.sequences_per_microbatch
    first, last = part.index == 0, part.index == part.count - 1
    shape = sequences, spec.context, spec.boundary_width
    if spec.narrow is not None:
        shape = joined(*shape)
    boundary = float(Encoding(draft.boundary_codec, "forward", shape).size_bytes)
    tokens = draft.tokens_per_microbatch + sequences  # targets are sent along
    forward = boundary + tokens * token_bytes(spec.vocab)
    return msgspec.structs.replace(
        draft.stages[part.index],
        flops=float(flops_per_token(spec, part) * draft.tokens_per_microbatch),
        uplink_bytes=(not last) * forward + (not first) * boundary,
        downlink_bytes=(not first) * forward + (not last) * boundary,
        memory_bytes=float(least_need(draft, part.index).total_bytes),
    )


def _fewer_stages(manifest: Manifest, machine: Machine) -> tuple[str, ...]:
    """Say that one stage would do, if it would: on home lines boundaries cost most."""
    if manifest.stage_count == 1 or fewest_stages(manifest.model) != 1:
        return ()
    one = recut(manifest, [manifest.model.layers], None)
    need = least_need(one, 0, host=machine.host_bytes > 0)
    if (
        need.total_bytes > machine.memory_bytes
        or PINNED * need.offloaded_bytes > machine.host_bytes
    ):
        return ()
    return (
        f"one stage takes {human_bytes(need.total_bytes)} of memory, which this machine has: with "
        "--stages 1 nothing is sent between stages",
    )


def _warnings(manifest: Manifest) -> Sequence[str]:
    found = []
    in_flight = manifest.stage_count + 1
    if manifest.stage_count > 1 and manifest.microbatches_per_step < 4 * in_flight:
        found.append(
            f"{manifest.microbatches_per_step} microbatches per step leave a pipeline of "
            f"{manifest.stage_count} stages idle much of the time; {10 * in_flight} would fill it"
        )
    found += warn_of_few(manifest, manifest.policy.redundancy)
    largest = max(manifest.stages, key=attrgetter("memory_bytes"))
    if largest.memory_bytes > (here := psutil.virtual_memory().total):
        advice = "with more --stages each needs less"
        if largest.layers == 1:
            advice = what_is_smaller(manifest.model)
        found.append(
            f"a stage needs {human_bytes(largest.memory_bytes)} of memory, and this machine has "
            f"{human_bytes(here)}: {advice}"
        )
    if manifest.policy.redundancy == 1:
        found.append("redundancy 1: training stops whenever a volunteer leaves")
    if manifest.model.narrow is not None:
        found.append(
            "the trained model will have narrow boundaries inside: volunteer sample computes them; "
            "transformers and llama.cpp do not, so there is no export"
        )
    found += warn_of_repeats(manifest, manifest.steps)
    return found
