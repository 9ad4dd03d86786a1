"""How a new swarm averages, where its founder does not say: by the founder's machine and line.

The stages are taken to have the volunteers that they should have, each with a machine and a line
like the founder's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from client.cli.founding.options import RunChoices
from client.compute.memory import MemoryNeed
from client.plan.model import Load, Machine, Prediction, Run, predict
from client.plan.rounds import WORTH_SHARE, gap_percent, paced
from client.quantities import plural
from client.train.machine.capacity import HOUSEHOLD_BYTES_PER_S
from client.train.workers.opening import PINNED
from client.views.words import size as human_bytes
from model_zoo.specs.codec import CODECS, AveragingCodec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token, forward_flops_per_token, update_flops
from model_zoo.specs.optimizer import OPTIMIZERS
from model_zoo.specs.slices import slices, whole_slice
from protocol.manifest import Manifest, StageCost

CHECKPOINT_EVERY: Final = 50
"""Steps of the exact run between checkpoints."""
UNMEASURED: Final = Machine(1e11, math.inf, HOUSEHOLD_BYTES_PER_S, HOUSEHOLD_BYTES_PER_S)
"""A volunteer where nothing was measured: a few cores on a household's line."""


@dataclass(frozen=True)
class Length:
    """Of a run with exact averaging, as the preset or the founder says."""

    microbatches: int
    """Of a step."""
    steps: int


def run_of(
    spec: ModelSpec,
    costs: Sequence[StageCost],
    optimizer: str,
    codec: AveragingCodec,
    microbatches: int,
    tokens: int,
    needs: Sequence[MemoryNeed] = (),
) -> Run:
    """Return what the efficiency model takes for a run.

    Args:
        spec: of the model.
        costs: of its stages.
        optimizer: name of that which updates it.
        codec: of what volunteers of a stage send one another.
        microbatches: of a step.
        tokens: of a microbatch.
        needs: of GPUs whose hosts have memory, by stage; empty: they are not told apart.
    """
    parts = slices([cost.layers for cost in costs])
    whole = whole_slice(spec)
    return Run(
        stages=tuple(
            Load(
                cost,
                float(update_flops(spec, part, optimizer)),
                needs[part.index].total_bytes if needs else 0.0,
                PINNED * needs[part.index].offloaded_bytes if needs else 0.0,
            )
            for cost, part in zip(costs, parts, strict=True)
        ),
        microbatches=microbatches,
        tokens_per_microbatch=tokens,
        averaging_bytes_per_parameter=CODECS[codec].bytes_per_number,
        forward_share=forward_flops_per_token(spec, whole) / flops_per_token(spec, whole),
    )


def founded_run(manifest: Manifest, needs: Sequence[MemoryNeed] = ()) -> Run:
    """Return what the efficiency model takes for a run that a manifest describes; ``needs`` as in
    `run_of`."""
    run = run_of(
        *(manifest.model, manifest.stages, manifest.optimizer.name, manifest.averaging_codec),
        *(manifest.microbatches_per_step, manifest.tokens_per_microbatch, needs),
    )
    if (rounds := manifest.local_rounds) is None:
        return run
    return replace(run, inner_microbatches=rounds.inner_microbatches)


def run_s(manifest: Manifest, machine: Machine) -> float:
    """Return the seconds of the run if every stage has the volunteers that it should have, each a
    machine like this one on its line."""
    placement = _placement(manifest.policy.redundancy, manifest.stages, machine)
    return manifest.steps * predict(founded_run(manifest), placement).step_s


def settled(
    run: RunChoices,
    spec: ModelSpec,
    costs: Sequence[StageCost],
    tokens: int,
    usual: Length,
    machine: Machine | None,
) -> tuple[RunChoices, tuple[str, ...]]:
    """Return the choices with what follows from the machine and its line, and say why in lines.

    Args:
        run: the founder's choices.
        spec: of the model.
        costs: of its stages.
        tokens: of a microbatch.
        usual: of the run, with exact averaging.
        machine: the founder's; None: it was not measured.
    """
    why: tuple[str, ...] = ()
    if run.averaging is None:
        run, why = _chosen(run, spec, costs, tokens, usual, machine)
    if run.averaging != "local":
        return run, why
    run = _with_rounds(run, spec, costs, tokens, usual, machine or UNMEASURED)
    return run, (*why, *_price(run, costs, usual))


def _chosen(
    run: RunChoices,
    spec: ModelSpec,
    costs: Sequence[StageCost],
    tokens: int,
    usual: Length,
    machine: Machine | None,
) -> tuple[RunChoices, tuple[str, ...]]:
    every_step = replace(run, averaging="every-step")
    if run.audit:
        return every_step, ()
    if machine is None:
        return every_step, ("averaging: in every step; nothing was measured to choose by",)
    rules = every_step.update_rule, every_step.sent_codec
    exact = run_of(spec, costs, *rules, usual.microbatches, tokens)
    share = averaging_share(predict(exact, _placement(run.replicas, costs, machine)))
    line = human_bytes(min(machine.upload_bytes_per_s, machine.download_bytes_per_s))
    volunteers = plural(run.replicas, "volunteer")
    words = f"of the time with {volunteers} a stage like this machine, on its line of {line}/s"
    if share <= WORTH_SHARE:
        return every_step, (f"averaging: in every step, which takes {share:.0%} {words}",)
    why = f"averaging: in local rounds, for in every step it would take {share:.0%} {words}"
    return replace(run, averaging="local"), (why,)


def averaging_share(found: Prediction) -> float:
    """Return the share of a step's time that is averaging alone."""
    return found.averaging_s / found.step_s


def _placement(replicas: int, costs: Sequence[StageCost], machine: Machine) -> list[list[Machine]]:
    roomy = replace(machine, memory_bytes=math.inf)
    return [[roomy] * replicas for _ in costs]


def _with_rounds(
    run: RunChoices,
    spec: ModelSpec,
    costs: Sequence[StageCost],
    tokens: int,
    usual: Length,
    machine: Machine,
) -> RunChoices:
    """Return the choices with the length of rounds, and of the run in rounds."""
    rules = run.update_rule, run.sent_codec
    local = run_of(spec, costs, *rules, usual.microbatches, tokens)
    local = replace(local, inner_microbatches=run.inner_microbatches or 0)
    all_of_it = usual.microbatches * usual.steps
    whole = all_of_it if run.steps is None else 100 * all_of_it  # it has as many rounds as chosen
    placement = _placement(run.replicas, costs, machine)
    rounds = paced(local, placement, usual.microbatches, whole, run.microbatches)
    in_a_round = rounds.microbatches / usual.microbatches
    return replace(
        run,
        microbatches=rounds.microbatches,
        inner_microbatches=rounds.inner_microbatches,
        steps=run.steps or max(1, round(usual.steps / in_a_round)),
        checkpoint_every=run.checkpoint_every or max(1, int(CHECKPOINT_EVERY / in_a_round)),
    )


def _price(run: RunChoices, costs: Sequence[StageCost], usual: Length) -> tuple[str, ...]:
    """Say what rounds spare in bytes, and what they cost in learning."""
    assert run.microbatches
    assert run.steps
    most = max(cost.parameters for cost in costs)
    sent = CODECS[run.sent_codec].bytes_per_number * most
    gap = gap_percent(run.steps, muon=OPTIMIZERS[run.update_rule].by_matrix)
    exact = CODECS["s8"].bytes_per_number * most * run.microbatches / usual.microbatches
    return (
        f"  a volunteer's contribution to a round of {run.microbatches} microbatches is "
        f"{human_bytes(sent)}, where steps of {usual.microbatches} would take {human_bytes(exact)}",
        f"  the price: no audits, and a loss about {gap:.1f} % higher after as "
        f"many tokens, in {plural(run.steps, 'round')}; it falls with the number of rounds",
    )
