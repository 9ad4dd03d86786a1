"""How a new swarm averages, where its founder does not say: by the founder's machine and line.

The stages are taken to have the volunteers that they should have, each with a machine and a line
like the founder's.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from client.cli.founding.options import EVERY_STEP_CODEC, PipelineChoices, RunChoices
from client.compute.memory import USUAL_GRAPHS, MemoryNeed, memory_need
from client.plan.cuts import Alternative, best_of
from client.plan.model import Load, Machine, Prediction, Run, predict
from client.plan.rounds import are_worth_it, gap_percent, paced
from client.quantities import plural
from client.train.machine.capacity import HOUSEHOLD_BYTES_PER_S
from client.train.workers.opening import PINNED
from client.views.words import per_s as human_line
from client.views.words import size as human_bytes
from model_zoo.specs.codec import CODECS
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token, forward_flops_per_token, update_flops
from model_zoo.specs.optimizer import OPTIMIZERS
from model_zoo.specs.slices import slices, whole_slice
from protocol.manifest import Manifest, StageCost, fits_a_frame

HANDLING_S: Final = 0.003
"""What a microbatch takes beside computing and sending, on two cores: most of a toy's time."""
CHECKPOINT_EVERY: Final = 50
"""Steps of the exact run between checkpoints."""
LARGER_MICROBATCHES: Final = (1, 2, 3, 4)
"""Times as many sequences a microbatch that are tried in local rounds, for the protocol bounds the
microbatches of a round."""
UNMEASURED: Final = Machine(1e11, math.inf, HOUSEHOLD_BYTES_PER_S, HOUSEHOLD_BYTES_PER_S)
"""A volunteer where nothing was measured: a few cores on a household's line."""


def least_need(manifest: Manifest, stage: int, *, host: bool = False) -> MemoryNeed:
    """Return the least memory of a stage's volunteer; ``host``: a GPU computes, whose host has
    memory of its own."""
    return memory_need(manifest, stage, USUAL_GRAPHS, reruns_blocks=True, host=host)


def founded_run(manifest: Manifest, *, hosts: bool = False) -> Run:
    """Return what the efficiency model takes for a run that a manifest describes; ``hosts``: GPUs
    whose hosts have memory are told apart."""
    spec, rounds = manifest.model, manifest.local_rounds
    whole = whole_slice(spec)
    loads = []
    for part, cost in zip(slices(manifest.layers_per_stage), manifest.stages, strict=True):
        update = float(update_flops(spec, part, manifest.optimizer.name))
        need = least_need(manifest, part.index, host=True) if hosts else None
        here, away = (need.total_bytes, need.offloaded_bytes) if need else (0.0, 0.0)
        loads.append(Load(cost, update, here, PINNED * away))
    return Run(
        stages=tuple(loads),
        microbatches=manifest.microbatches_per_step,
        tokens_per_microbatch=manifest.tokens_per_microbatch,
        averaging_bytes_per_parameter=CODECS[manifest.averaging_codec].bytes_per_number,
        inner_microbatches=0 if rounds is None else rounds.inner_microbatches,
        forward_share=forward_flops_per_token(spec, whole) / flops_per_token(spec, whole),
        handling_s=HANDLING_S,
    )


def run_s(manifest: Manifest, machine: Machine) -> float:
    """Return the seconds of the run if every stage has the volunteers that it should have, each a
    machine like this one on its line."""
    placement = _placement(manifest.policy.redundancy, manifest.stages, machine)
    return manifest.steps * predict(founded_run(manifest), placement).step_s


def microbatch_sizes(run: PipelineChoices, spec: ModelSpec) -> list[int]:
    """Return the sequences of a microbatch that are tried in local rounds: those chosen, or some
    times the preset's, as far as they can be sent."""
    usual = run.sequences_per_microbatch
    if run.sequences is not None:
        return [usual]
    return [n for each in LARGER_MICROBATCHES if fits_a_frame(spec, n := each * usual)] or [usual]


def averaging_chosen(
    run: RunChoices, local: RunChoices, drafts: Sequence[Manifest], machine: Machine | None
) -> tuple[RunChoices, tuple[str, ...]]:
    """Return the choices with a way to average that suits the machine and its line, and say why.

    Args:
        run: the founder's choices.
        local: the same in local rounds.
        drafts: of the run with exact averaging, or with what is chosen already, the first one; and
            with larger microbatches, for local rounds.
        machine: the founder's; None: it was not measured.
    """
    draft = drafts[0]
    if run.averaging is not None:
        return run, ()
    every_step = replace(run, averaging="every-step")
    if run.audit:
        return every_step, ()
    if machine is None:
        return every_step, ("averaging: in every step; nothing was measured to choose by",)
    replicas = draft.policy.redundancy
    if replicas == 1:
        return every_step, (
            "averaging: in every step; 1 volunteer a stage has nobody to average with",
        )
    placement = _placement(replicas, draft.stages, machine)
    exact = predict(founded_run(draft), placement)
    line = human_line(min(machine.upload_bytes_per_s, machine.download_bytes_per_s))
    takes = (
        f"{exact.averaging_share:.0%} of the time with {replicas} volunteers a stage like this "
        f"machine, on its line of {line}"
    )
    if are_worth_it(exact, _rounds(local, drafts, machine)[1]):
        return local, (
            "averaging: in local rounds, each of several steps that a volunteer takes alone; "
            f"averaging every step would take {takes}",
        )
    return every_step, (f"averaging: in every step, which takes {takes}",)


def rounds_chosen(
    run: RunChoices, drafts: Sequence[Manifest], machine: Machine | None
) -> tuple[RunChoices, tuple[str, ...]]:
    """Return the choices of local rounds with what follows from the machine and its line, and say
    what rounds spare and cost.

    Args:
        run: the founder's choices, with what strangers need.
        drafts: as `averaging_chosen` takes them.
        machine: the founder's; None: it was not measured.
    """
    draft, bytes_per_number = drafts[0], CODECS[run.sent_codec].bytes_per_number
    rounds, _ = _rounds(run, drafts, machine)
    sequences = rounds.tokens_per_microbatch // draft.model.context
    in_a_round = rounds.microbatches * rounds.tokens_per_microbatch / draft.tokens_per_step
    steps = run.steps or max(1, round(draft.steps / in_a_round))
    most = max(cost.parameters for cost in draft.stages)
    exact = in_a_round * most * CODECS[EVERY_STEP_CODEC].bytes_per_number
    gap = gap_percent(steps, run.replicas, muon=OPTIMIZERS[run.update_rule].by_matrix)
    price = (
        f"  a volunteer's contribution to a round of {rounds.microbatches} microbatches, each of "
        f"{plural(sequences, 'sequence')}, is {human_bytes(most * bytes_per_number)}, where steps "
        f"of as many tokens would take {human_bytes(exact)}",
        f"  the price: no audits, and a loss about {gap:.1f} % higher after as "
        f"many tokens, in {plural(steps, 'round')}; it falls with the number of rounds",
    )
    run = replace(
        run,
        sequences=sequences,
        microbatches=rounds.microbatches,
        inner_microbatches=rounds.inner_microbatches,
        steps=steps,
        checkpoint_every=run.checkpoint_every or max(1, int(CHECKPOINT_EVERY / in_a_round)),
    )
    return run, price


def _rounds(
    run: RunChoices, drafts: Sequence[Manifest], machine: Machine | None
) -> tuple[Run, Prediction]:
    """Return the run in local rounds of a length and with microbatches that suit the machine, as
    `plan` chooses them; with those of the first draft where nothing was measured."""
    if machine is None:
        drafts, machine = drafts[:1], UNMEASURED
    placement = _placement(run.replicas, drafts[0].stages, machine)
    step_tokens, found = drafts[0].tokens_per_step, list[Alternative]()
    tokens = step_tokens * drafts[0].steps
    tokens *= 1 if run.steps is None else 100  # so many rounds are chosen
    for draft in drafts:
        if found and max(cost.memory_bytes for cost in draft.stages) > machine.memory_bytes:
            break
        local = replace(
            founded_run(draft),
            averaging_bytes_per_parameter=CODECS[run.sent_codec].bytes_per_number,
            inner_microbatches=run.inner_microbatches or 0,
        )
        rounds = paced(local, placement, step_tokens, tokens, run.microbatches)
        found.append(Alternative(rounds, predict(rounds, placement), placement))
    best = best_of(found, run.replicas)
    assert best is not None
    assert best.prediction is not None
    return best.run, best.prediction


def _placement(replicas: int, costs: Sequence[StageCost], machine: Machine) -> list[list[Machine]]:
    roomy = replace(machine, memory_bytes=math.inf)
    return [[roomy] * replicas for _ in costs]
