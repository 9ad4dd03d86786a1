"""The fewest stages that a model can be cut into; more than one where a stage would be too large.

It says what members could exchange at all. What a machine's memory holds is usually less: `create`
and `plan` say that.
"""

from client.cli.founding.options import usage
from client.quantities import plural
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.partition import cut
from model_zoo.specs.slices import frozen_bytes, slices, stage_parameter_count
from protocol.limits import MAX_BLOB_BYTES, MAX_STAGES
from protocol.manifest import too_large


def fewest_stages(spec: ModelSpec) -> int:
    """Return the fewest stages whose cut every peer would accept.

    Raises:
        UserError: no number of stages makes each of them small enough.
    """
    for count in range(1, min(spec.layers, MAX_STAGES) + 1):
        if (problem := _problem(spec, count)) is None:
            return count
    raise usage(
        f"no number of stages suffices: {problem}",
        "choose a narrower model, or one with a smaller vocabulary",
    )


def check_stages(spec: ModelSpec, stages: int) -> None:
    """Check that a model can be cut into so many stages, before anything is measured.

    Raises:
        UserError: it has too few layers, or a stage would be too large; says how many stages it can
            have, or needs.
    """
    most = min(spec.layers, MAX_STAGES)
    if stages > most:
        words = f"{plural(spec.layers, 'layer')} cannot be cut into {stages} stages"
        raise usage(words, f"use at most --stages {most}")
    problem = _problem(spec, stages)
    if problem is None:
        return
    words = f"{spec.parameter_count:,} parameters are too many for --stages {stages}"
    advice = f"take --stages {fewest_stages(spec)} or more, each of them a volunteer"
    raise usage(f"{words}: {problem}", advice)


def what_is_smaller(spec: ModelSpec) -> str:
    """Say what needs less memory than a stage of one layer does: no cut is finer."""
    if spec.experts is None:
        return "a layer is not cut: choose a narrower model, or adapters (--lora)"
    experts = f"a layer is not cut, and has all its {spec.experts.count} experts"
    return f"{experts}: choose a model with fewer or narrower ones, or adapters (--lora)"


def _problem(spec: ModelSpec, stages: int) -> str | None:
    """Say in words why members could not exchange what a stage has, or None."""
    for part in slices(cut(spec, stages)):
        if problem := too_large(stage_parameter_count(spec, part)):
            return problem.partition(":")[0]
        if frozen_bytes(spec, part) > MAX_BLOB_BYTES:
            return "a stage's frozen weights are too large to be copied by newcomers"
    return None
