"""The demo's results, as data and as text: loss, speed, recovery, and the two invariants."""

from pathlib import Path

from msgspec import Struct

from client.cli.models.model_source import Places
from client.compute.checkpoint import examine
from client.compute.errors import CheckpointError
from client.lab.demo.run import Observed
from client.views import plot
from client.views.span import Box, plain
from client.views.words import count

CURVE = Box(66, 12)


class Invariants(Struct, frozen=True):
    """The invariants of every run."""

    steps_committed: int
    doubled_microbatches: int
    """I1: microbatches that a committed step counted twice; must be 0."""
    compared_replicas: int
    """I2: pairs of replicas whose state at the same version was compared."""
    differing_replicas: int
    """I2: pairs that differed in a bit; must be 0."""

    @property
    def hold(self) -> bool:
        """Whether both hold."""
        return self.doubled_microbatches == 0 and self.differing_replicas == 0


class DemoReport(Struct, frozen=True):
    """Answer of ``volunteer demo --json``."""

    ok: bool
    swarm: str
    volunteers: int
    stages: int
    steps: int
    version: int
    """Version of the model below: the number of steps it was trained for."""
    training_loss: float | None
    """Of the last step."""
    held_out_loss: float
    """Nats per token (byte) on text that was not trained on."""
    median_tokens_per_s: float
    losses: list[tuple[int, float]]
    """Mean training loss by step, in nats per token (byte)."""
    killed: str | None
    killed_at_step: int | None
    recovered_s: float | None
    """From SIGKILL to the first accepted backward of a re-routed microbatch."""
    rerouted_microbatches: int
    replayed_microbatches: int
    invariants: Invariants
    seconds: float
    model: str
    sample: str
    schema_version: int = 1


def check_invariants(seen: Observed, places: Places) -> Invariants:
    """Check I1 by the volunteers' counters and I2 by the bytes of their checkpoints."""
    compared = differing = 0
    for stages in places.values():
        for paths in stages.values():
            hashes = [found for found in map(_hash, paths) if found]
            compared += max(0, len(hashes) - 1)
            differing += sum(found != hashes[0] for found in hashes[1:])
    last = seen.last.values()
    return Invariants(
        steps_committed=max((now.step for now in last), default=0),
        doubled_microbatches=sum(now.counters.doubled_microbatches for now in last),
        compared_replicas=compared,
        differing_replicas=differing,
    )


def _hash(path: Path) -> str | None:
    try:
        return examine(path)[0].hash
    except CheckpointError:
        return None  # cut off by the SIGKILL or replaced meanwhile


def report_text(report: DemoReport) -> str:
    """Return the report for people."""
    rows = [
        ("steps", f"{report.invariants.steps_committed} of {report.steps}"),
        ("held-out loss", f"{report.held_out_loss:.4f} nats per byte"),
        ("speed", f"{count(report.median_tokens_per_s)}/s tokens (median)"),
        ("killed", _recovery(report)),
        (
            "mended",
            f"{report.rerouted_microbatches} microbatches sent another way, "
            f"{report.replayed_microbatches} replayed",
        ),
        ("I1 exactly once", f"{report.invariants.doubled_microbatches} microbatches counted twice"),
        (
            "I2 identical",
            f"{report.invariants.differing_replicas} of "
            f"{report.invariants.compared_replicas} replica pairs differ",
        ),
        ("model", f"{report.model} (Hugging Face layout)"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    lines = [f"{name:<{width}}{words}" for name, words in rows]
    curve = [plain([line]) for line in plot.curve(report.losses, CURVE)]
    lines += ["", "loss by step:", *curve, "", "sample:", report.sample.rstrip()]
    return "\n".join(lines)


def _recovery(report: DemoReport) -> str:
    if report.killed is None:
        return "nobody"
    killed = f"{report.killed} at step {report.killed_at_step}"
    if report.recovered_s is None:
        return f"{killed}; no microbatch had to be sent another way"
    return (
        f"{killed}; {report.recovered_s:.2f} s from the kill to the first microbatch done "
        "another way"
    )
