"""The planned run of ``volunteer plan``: a founded swarm's, or one described by flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.cli.founding.options import ModelChoices, RunChoices
from client.cli.founding.presets import PRESETS
from client.cli.planning.options import PlanChoices
from client.cli.reach.home import Home
from client.cli.reach.target import find_swarm
from client.errors import ExitCode, UserError
from client.plan import compare
from model_zoo.specs import optimizer as optimizers
from model_zoo.specs.model import ModelSpec
from protocol.invite import SwarmFile
from protocol.limits import MAX_STAGES
from protocol.manifest import Manifest

if TYPE_CHECKING:
    from client.cli.planning.work import ModelWorks  # which imports torch


@dataclass(frozen=True)
class Setting:
    """The run that is planned."""

    model: ModelSpec
    manifest: Manifest | None
    """None: not founded yet."""
    run: RunChoices
    sequences: int
    """Per microbatch."""
    microbatches: int
    steps: int
    only_stages: int | None

    def counts(self, machines: int) -> list[int]:
        """Return the numbers of stages to compare."""
        if self.only_stages:
            return [self.only_stages]
        counts = compare.stage_counts(self.model.layers, machines)
        founded = {self.manifest.stage_count} if self.manifest else set()
        return sorted({*counts, *founded, self.fewest(machines)})

    def fewest(self, machines: int) -> int:
        """Return the fewest stages that the model can be cut into.

        Args:
            machines: the number of those that are to train it.

        Raises:
            UserError: it is too large for any cut, for the chosen one, or for so few machines.
        """
        from client.cli.founding.fitting import check_stages, fewest_stages, impossible

        if self.only_stages:
            check_stages(self.model, self.only_stages)
        fewest = fewest_stages(self.model)
        if fewest is None:
            raise impossible(self.model)
        if fewest > machines:
            problem = f"{self.model.parameter_count:,} parameters need {fewest} stages or more"
            raise UserError(
                f"{problem}, each of them a machine", f"plan for --machines {fewest} or more"
            )
        return fewest

    def works(self) -> ModelWorks:
        """Return the costs of stages, measured if need be."""
        from client.cli.planning.work import ModelWorks  # imports torch, so it comes last

        if self.manifest is not None:
            return ModelWorks.of(self.manifest, self.run)
        return ModelWorks(self.model, self.run, self.sequences)


def chosen(run: PlanChoices, model: ModelChoices) -> Setting:
    """Return the run that flags describe.

    Raises:
        UserError: they contradict each other.
    """
    from client.cli.founding.manifest import choose_model

    preset = PRESETS[run.preset or "tiny"]
    sequences = run.sequences or preset.sequences_per_microbatch
    choices = RunChoices(
        boundary_codec=run.boundary_codec or "s8",
        averaging_codec=run.averaging_codec or "s8",
        aggregation=run.aggregation,
        delayed_update=run.delayed_update or False,
        redundancy=run.redundancy,
        optimizer=run.optimizer or optimizers.DEFAULT,
        measure=run.measure,
    )
    shape = choose_model(preset, model, run.vocab or preset.model.vocab, run.stages)
    _check_stages(run.stages, shape)
    microbatches = run.microbatches or preset.microbatches_per_step
    return Setting(
        *(shape, None, choices, sequences, microbatches, preset.steps),
        only_stages=run.stages,
    )


def founded(home: Home, text: str, run: PlanChoices, model: ModelChoices) -> Setting:
    """Return a founded swarm's run.

    Args:
        home: of the volunteer that remembers the swarm.
        text: a ``.swarm`` file, or the name of a remembered swarm.
        run: flags of the run, which must not contradict the manifest.
        model: flags of the model's shape, which must not either.

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
    manifest = found.manifest
    changed = {**vars(run), **vars(model), "stages": None, "measure": None}
    if any(value is not None for value in changed.values()):
        raise UserError(
            "--swarm fixes model, tokens per step, codecs and redundancy",
            "leave --swarm out to plan for other values; --stages may be given",
            ExitCode.USAGE,
        )
    _check_stages(run.stages, manifest.model)
    choices = RunChoices(
        boundary_codec=manifest.boundary_codec,
        averaging_codec="s8" if manifest.averaging_codec == "ring16" else manifest.averaging_codec,
        aggregation=manifest.aggregation,
        delayed_update=manifest.delayed_update,
        compute_dtype=manifest.compute,
        audit=round(100 * manifest.audits),
        redundancy=manifest.policy.redundancy,
        dual_homing=manifest.policy.dual_homing,
        optimizer=manifest.optimizer.name,
        measure=False,  # the manifest has the costs of its stages
    )
    return Setting(
        *(manifest.model, manifest, choices, manifest.sequences_per_microbatch),
        *(manifest.microbatches_per_step, manifest.steps),
        only_stages=run.stages,
    )


def _check_stages(stages: int | None, model: ModelSpec) -> None:
    most = min(model.layers, MAX_STAGES)
    if stages is not None and stages > most:
        problem = f"{model.layers} layers cannot be cut into {stages} stages"
        raise UserError(problem, f"use at most --stages {most}", ExitCode.USAGE)
