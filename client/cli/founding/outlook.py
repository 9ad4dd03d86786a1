"""Says before anybody joins how long a run takes, and what memory its stages need."""

from collections.abc import Iterator
from typing import Final

from client.cli.terminal.swarm_text import memory_words
from client.quantities import plural
from client.views.words import duration as human_duration
from model_zoo.specs.aggregation import RULES
from protocol.limits import LEAST_TO_CONVICT
from protocol.manifest import Manifest

LONG_S: Final = 30 * 86_400.0
"""A run that takes longer is founded with a warning."""


def outlook(manifest: Manifest, seconds: float | None) -> Iterator[str]:
    """Yield lines about time and memory; ``seconds``: of the run with volunteers like this machine,
    None: nothing was measured."""
    taken = memory_words(stage.memory_bytes for stage in manifest.stages)
    yield f"memory of a volunteer: {taken}"
    if seconds is None:
        yield "nothing was measured; volunteer plan --swarm says how long the run takes"
        return
    yield (
        f"the run takes {human_duration(seconds)} or more with {_volunteers(manifest)} like this "
        "machine; volunteer plan --swarm reckons with other machines and lines"
    )


def warn_of_time(manifest: Manifest, seconds: float | None) -> Iterator[str]:
    """Yield a warning if a run takes very long."""
    if seconds is None or seconds <= LONG_S:
        return
    fitting = max(1, int(manifest.steps * LONG_S / seconds))
    yield (
        f"with {_volunteers(manifest)} like this machine the run takes {human_duration(seconds)}: "
        f"--steps {fitting} takes {human_duration(LONG_S)}; else take a smaller model, or faster "
        "machines: volunteer plan says what they make of it"
    )


def warn_of_few(manifest: Manifest, replicas: int) -> Iterator[str]:
    """Yield a warning of each protection that a stage with so few volunteers lacks."""
    robust = RULES[manifest.aggregation].robust_from
    if replicas < robust:
        yield (
            f"{manifest.aggregation} tells who lies from {robust} volunteers to a stage on, and "
            f"bounds only norms before; --redundancy {robust} asks for them"
        )
    if manifest.audits and replicas < LEAST_TO_CONVICT:
        yield (
            f"audits find who lies, and convict nobody with fewer than {LEAST_TO_CONVICT} "
            f"volunteers to a stage; --redundancy {LEAST_TO_CONVICT} asks for them"
        )


def _volunteers(manifest: Manifest) -> str:
    each, stages = manifest.policy.redundancy, manifest.stage_count
    where = f"{each} in each of {stages} stages" if stages > 1 else "of one stage"
    return f"{plural(each * stages, 'volunteer')} ({where})"
