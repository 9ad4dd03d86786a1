"""The run that ``volunteer plan`` predicts: a founded swarm's, or one described by flags."""

from __future__ import annotations

from dataclasses import dataclass, replace

from client.cli.founding.options import ModelChoices, PlanChoices
from client.cli.founding.presets import PRESETS
from client.cli.reach.home import Home
from client.cli.reach.target import find_swarm
from client.errors import ExitCode, UserError
from client.plan.cuts import stage_counts
from client.plan.model import Run
from model_zoo.specs.codec import CODECS
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.state import StateSpec
from protocol.invite import SwarmFile
from protocol.limits import MAX_STAGES
from protocol.manifest import Manifest, StageCost, fits_a_frame

Cut = tuple[StageCost, ...]


@dataclass(frozen=True)
class PlannedRun:
    """The run, and the cuts of its model that are compared."""

    model: ModelSpec
    cuts: tuple[Cut, ...]
    pace: Run
    """What all cuts have in common; without stages."""
    sequences: int
    """Per microbatch."""
    steps: int
    rule: str
    """Of aggregation."""
    audit_percent: int
    redundancy: int
    state: StateSpec
    manifest: Manifest | None = None
    """None: not founded yet."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step trains on."""
        return self.pace.microbatches * self.pace.tokens_per_microbatch

    @property
    def flops_per_token(self) -> float:
        """The cost of the whole model for one token, which is the same in every cut."""
        return sum(stage.flops for stage in self.cuts[0]) / self.pace.tokens_per_microbatch


def chosen(run: PlanChoices, model: ModelChoices, machines: int) -> PlannedRun:
    """Return the run that flags describe, cut in several ways for so many machines.

    Raises:
        UserError: they contradict each other, or no cut is possible.
    """
    from client.cli.founding.manifest import choose_model, measured_prices, price_stages

    preset = PRESETS[run.preset]
    sequences = run.sequences or preset.sequences_per_microbatch
    spec = choose_model(preset, model, run.vocab or preset.model.vocab, run.stages)
    counts = possible_counts(spec, run.stages, machines)
    if not fits_a_frame(spec, sequences):
        problem = f"a microbatch of {sequences} sequences is too large for one message"
        raise UserError(problem, "take a smaller --microbatch", ExitCode.USAGE)
    prices = measured_prices(spec, run, sequences)
    return PlannedRun(
        model=spec,
        cuts=tuple(price_stages(spec, run, count, sequences, prices)[0] for count in counts),
        pace=Run(
            stages=(),
            microbatches=run.microbatches or preset.microbatches_per_step,
            tokens_per_microbatch=sequences * spec.context,
            averaging_bytes_per_parameter=CODECS[run.sent_codec].bytes_per_number,
        ),
        sequences=sequences,
        steps=preset.steps,
        rule=run.rule,
        audit_percent=run.audit or 0,
        redundancy=run.replicas,
        state=run.state,
    )


def possible_counts(spec: ModelSpec, only: int | None, machines: int) -> list[int]:
    """Return the numbers of stages to compare, before anything is measured.

    Args:
        spec: shape of the model.
        only: the number that was chosen.
        machines: the number of those that are to train it.

    Raises:
        UserError: the model is too large for any cut, for the chosen one, or for so few machines.
    """
    from client.cli.founding.fitting import check_stages, fewest_stages, impossible

    most = min(spec.layers, MAX_STAGES)
    if only is not None and only > most:
        problem = f"{spec.layers} layers cannot be cut into {only} stages"
        raise UserError(problem, f"use at most --stages {most}", ExitCode.USAGE)
    if only is not None:
        check_stages(spec, only)
    fewest = fewest_stages(spec)
    if fewest is None:
        raise impossible(spec)
    if fewest > machines:
        problem = f"{spec.parameter_count:,} parameters need {fewest} stages or more"
        advice = f"plan for --machines {fewest} or more"
        raise UserError(f"{problem}, each of them a machine", advice)
    counts = {fewest, *(n for n in stage_counts(spec.layers, machines) if n > fewest)}
    return sorted(counts) if only is None else [only]


def founded(home: Home, text: str, run: PlanChoices, model: ModelChoices) -> PlannedRun:
    """Return a founded swarm's run, in its own cut.

    Args:
        home: of the volunteer that remembers the swarm.
        text: a ``.swarm`` file, or the name of a remembered swarm.
        run: flags of the run, none of which may be given.
        model: flags of the model's shape, none of which may either.

    Raises:
        UserError: it cannot be found, or a flag contradicts it.
    """
    found = find_swarm(home, text)
    if not isinstance(found, SwarmFile):
        raise UserError(
            "an invite does not contain the swarm's model",
            "pass its .swarm file, or its name once you have joined it",
            ExitCode.USAGE,
        )
    if replace(run, measure=True) != PlanChoices() or model != ModelChoices():
        raise UserError(
            "--swarm fixes the model, its stages, tokens per step, codecs and redundancy",
            "leave --swarm out to plan for other values",
            ExitCode.USAGE,
        )
    manifest = found.manifest
    return PlannedRun(
        model=manifest.model,
        cuts=(manifest.stages,),
        pace=Run(
            stages=(),
            microbatches=manifest.microbatches_per_step,
            tokens_per_microbatch=manifest.tokens_per_microbatch,
            averaging_bytes_per_parameter=CODECS[manifest.averaging_codec].bytes_per_number,
        ),
        sequences=manifest.sequences_per_microbatch,
        steps=manifest.steps,
        rule=manifest.aggregation,
        audit_percent=round(100 * manifest.audits),
        redundancy=manifest.policy.redundancy,
        state=manifest.state,
        manifest=manifest,
    )
