"""The demo's results, as data and as text: loss, speed, recovery, and the invariants."""

from msgspec import Struct

from client.views import plot
from client.views.span import Box, plain
from client.views.words import count

CURVE = Box(66, 12)


class DemoReport(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer demo --json``."""

    ok: bool
    problems: list[str]
    """The reasons why it is not ok."""
    swarm: str
    volunteers: int
    stages: int
    steps: int
    version: int
    """Version of the model below: the number of steps it was trained for."""
    held_out_loss: float
    """Nats per token (byte) on text that was not trained on."""
    tokens_per_s: float
    """From the first step to the last."""
    losses: list[tuple[int, float]]
    """Mean training loss by step, in nats per token (byte)."""
    killed: str | None
    killed_at_step: int | None
    recovered_s: float | None
    """From SIGKILL to the first accepted gradient of a re-routed microbatch; without one (none was
    in flight) until its stage closed the next step."""
    rerouted_microbatches: int
    replayed_microbatches: int
    steps_closed: int
    microbatches_doubled: int
    """Microbatches counted twice in a closed step, by the logs of its replicas (I1); must be 0."""
    steps_differing: int
    """Closed steps of a stage that replicas applied with different results (I2); must be 0."""
    seconds: float
    model: str
    sample: str
    schema_version: int = 2


def report_text(report: DemoReport) -> str:
    """Return the report for people."""
    mended = (
        f"{report.rerouted_microbatches} microbatches sent another way, "
        f"{report.replayed_microbatches} replayed"
    )
    rows = [
        ("steps", f"{report.steps_closed} of {report.steps}"),
        ("held-out loss", f"{report.held_out_loss:.4f} nats per byte"),
        ("speed", f"{count(report.tokens_per_s)}/s tokens"),
        ("killed", _recovery(report)),
        ("mended", mended),
        ("I1 exactly once", f"{report.microbatches_doubled} microbatches counted twice"),
        ("I2 identical", f"{report.steps_differing} steps differ between replicas"),
        ("model", f"{report.model} (Hugging Face layout)"),
        *(("not ok", problem) for problem in report.problems),
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
        return killed
    return f"{killed}; work went on {report.recovered_s:.2f} s later"
