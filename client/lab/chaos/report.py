"""The report of a pair of runs, as data (``chaos.json``) and as Markdown (``chaos.md``). Pure."""

import math
import statistics
from collections.abc import Iterator, Sequence

from msgspec import Struct

from client.cli.founding.options import AveragingName
from client.lab.chaos.catalogue import MEANINGS
from client.lab.chaos.ledger import Ledger, read_ledger
from client.lab.chaos.measure import (
    FaultFigures,
    late_gaps,
    loss_gap,
    measure_faults,
    missing_share,
    read_progress,
    trained,
)
from client.lab.chaos.run import Seen
from client.views.text import aligned

TOLERANCE = 1e-3
"""Relative difference of the losses at a step that the order of sums explains (I3)."""


class Settings(Struct, frozen=True, kw_only=True):
    """The options of the run."""

    volunteers: int
    stages: int
    averaging: AveragingName
    seconds: float
    every_s: float
    seed: int
    faults: list[str]
    """Those of the schedule; one whose turn never came has no figures."""
    compute_share: int
    """Percent of the time that each volunteer may compute."""
    cores: int
    load: float = 0.0
    """Of the machine, at the end."""


class Report(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer chaos --json``, and the content of ``chaos.json``."""

    ok: bool
    problems: list[str]
    """The reasons why it is not ok."""
    settings: Settings
    faults: list[FaultFigures]
    steps_closed: int
    steps_missing: int
    steps_rolled_back: int
    microbatches_doubled: int
    """Microbatches counted twice in a closed step, by the logs of its replicas (I1); must be 0."""
    steps_attested: int
    """Closed steps of a stage of which the logs account for every microbatch."""
    steps_unattested: int
    """Those of which a replica died before it logged its share."""
    steps_differing: int
    """Closed steps of a stage that replicas applied with different results (I2); must be 0."""
    steps_compared: int
    loss_gap: float | None
    """Largest relative difference of the losses at equal step (I4)."""
    loss_higher: float | None
    """Local rounds in one stage: how much higher, relative, the losses of the last quarter are than
    those of the same rounds made again without faults, on the mean (I4)."""
    loss_spread: float | None
    """Such differences of single steps in the run without faults, root mean square: they are of the
    order in which each replica counted."""
    tokens: int
    reference_tokens: int
    goodput: float | None
    missing_share: float
    """Share of the volunteers' time."""
    goodput_corrected: float | None
    """Goodput corrected for it."""
    trouble: list[str]
    schema_version: int = 1


def make_report(settings: Settings, seen: Seen, paired: Seen, per_step: int) -> Report:
    """Judge a pair of runs; ``per_step``: microbatches of a step."""
    faults = measure_faults(seen)
    ledger = read_ledger(seen.notes, per_step, settings.stages)
    progress, reference = read_progress(seen.notes), read_progress(paired.notes)
    compared, gap = loss_gap(progress, reference)
    late, usual = late_gaps(seen), late_gaps(paired)
    higher = statistics.fmean(late) if late and usual else None
    spread = math.sqrt(statistics.fmean(x * x for x in usual)) if late and usual else None
    tokens, reference_tokens = trained(seen), trained(paired)
    share = tokens / reference_tokens if reference_tokens else None
    missing = missing_share(seen)
    corrected = None if share is None else share / max(1e-9, 1.0 - missing)
    problems = what_broke(faults, seen.crashes, ledger)
    if not compared or not tokens:
        problems.append("no step could be compared: the swarm did not go on")
    if settings.averaging == "local":
        problems += _late_problems(higher, spread)
    elif gap is not None and gap > TOLERANCE:
        problems.append(f"the losses differ by {gap:.1e}, more than {TOLERANCE:g}")
    return Report(
        ok=not problems,
        problems=problems,
        settings=settings,
        faults=faults,
        steps_closed=ledger.closed,
        steps_missing=len(ledger.missing),
        steps_rolled_back=max((undone.steps for undone in ledger.undone), default=0),
        microbatches_doubled=ledger.doubled,
        steps_attested=ledger.whole,
        steps_unattested=ledger.unattested,
        steps_differing=ledger.differing,
        steps_compared=compared,
        loss_gap=gap,
        loss_higher=higher,
        loss_spread=spread,
        tokens=tokens,
        reference_tokens=reference_tokens,
        goodput=_rounded(share),
        missing_share=round(missing, 4),
        goodput_corrected=_rounded(corrected),
        trouble=seen.trouble,
    )


def what_broke(faults: Sequence[FaultFigures], crashes: Sequence[str], ledger: Ledger) -> list[str]:
    """Return what went wrong in a run of the real swarm, in words: nothing should."""
    problems = list(crashes)
    lost = [f"{f.fault} rolled back {f.lost_steps} steps" for f in faults if f.lost_steps]
    problems += [text for text in lost if not text.startswith("stage")]
    if ledger.missing:
        problems.append(f"steps {list(ledger.missing[:10])} were never seen closed")
    if ledger.doubled or ledger.differing:
        problems.append("an invariant is broken: see doubled and differing")
    return problems


def _late_problems(higher: float | None, spread: float | None) -> list[str]:
    if higher is None or spread is None or abs(higher) <= TOLERANCE + spread:
        return []
    most = f"{TOLERANCE:g} and the {spread:.1e} of the run without faults"
    return [f"the losses at the end are {higher:+.1e} from where they should be, more than {most}"]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


LEGEND = (
    "Seconds from the instant of the fault: until the first accepted gradient of a microbatch that "
    "was sent another way, until the swarm knew of the next closed step, until the stage had one "
    "more replica again. A star: no such gradient came, for all work was run for its count alone, "
    "or leased again, or none was under way; then it is until the stage closed its next step. A "
    "replica more restores redundancy and holds nobody up as long as the stage has another one."
)
LOCAL = (
    "In local rounds few volunteers take more steps each, so that losses fall sooner. So each run "
    "is held against its own rounds, made again in one process and shared as they were: the "
    "mean of the last quarter with faults, the root mean square of single steps without, which the "
    "order of counting explains."
)
HEAD = ("#", "fault", "stage", "step", "RTO", "next step", "one more", "lost steps")


def _rows(report: Report) -> Iterator[list[str]]:
    """Yield the faults as rows of text; times in seconds."""
    for fault in report.faults:
        rto = _seconds(fault.rto_s) + ("*" if fault.rto_by == "step" else "")
        name = fault.fault if fault.at_s is not None else f"{fault.fault} (its moment never came)"
        step = "-" if fault.step is None else str(fault.step)
        start = [str(fault.number + 1), name, str(fault.stage), step]
        times = [rto, _seconds(fault.stall_s), _seconds(fault.back_s)]
        yield [*start, *times, str(fault.lost_steps)]


def _summary(report: Report) -> list[tuple[str, str]]:
    """Return the figures of the pair with their names."""
    done = [fault for fault in report.faults if fault.at_s is not None]
    times = [fault.rto_s for fault in done if fault.rto_s is not None]
    by_gradient = sum(fault.rto_by == "gradient" for fault in done)
    middle = statistics.median(times) if times else None
    return [
        ("faults done", f"{len(done)} of {len(report.settings.faults)}"),
        ("lost steps (RPO)", f"{report.steps_rolled_back}; {report.steps_missing} missing"),
        ("counted twice (I1)", f"{report.microbatches_doubled} microbatches"),
        ("replicas that differ (I2)", f"{report.steps_differing} steps"),
        ("attested whole", f"{report.steps_attested} steps; {report.steps_unattested} not"),
        (
            "RTO, median and worst",
            f"{_seconds(middle)}, {_seconds(max(times, default=None))} s; "
            f"{by_gradient} of {len(times)} by a gradient",
        ),
        *_losses(report),
        ("tokens", f"{report.tokens} against {report.reference_tokens} without faults"),
        ("goodput", f"{_share(report.goodput)}; volunteers away {_share(report.missing_share)}"),
        ("goodput, corrected for that", _share(report.goodput_corrected)),
    ]


def _losses(report: Report) -> list[tuple[str, str]]:
    equal = f"{_relative(report.loss_gap)} relative at most, {report.steps_compared} steps"
    if report.settings.averaging != "local":
        return [("loss at equal step (I4)", equal)]
    higher, spread = _relative(report.loss_higher, "+"), _relative(report.loss_spread)
    again = f"{higher} relative at the end; a step without faults {spread}"
    return [("loss at equal step", equal), ("loss of the same rounds (I4)", again)]


def text_report(report: Report) -> str:
    """Return the report for a terminal."""
    lines = list(aligned(HEAD, list(_rows(report))))
    named = _summary(report)
    width = max(len(name) for name, _ in named) + 2
    lines += ["", *(f"{name:<{width}}{words}" for name, words in named)]
    lines += [f"not ok: {problem}" for problem in report.problems]
    return "\n".join(line.rstrip() for line in lines)


def markdown(report: Report) -> str:
    """Return the report as a Markdown document."""
    asked = report.settings
    kinds = {name.partition("@")[0] for name in asked.faults}
    parts = [
        "# Chaos",
        f"{asked.volunteers} volunteers in {asked.stages} stages, averaging {asked.averaging}, as "
        f"processes on one machine of {asked.cores} cores (load {asked.load:g} at the end), "
        f"each computing {asked.compute_share} % of the time; {asked.seconds:g} s, a fault every "
        f"{asked.every_s:g} s, seed {asked.seed}; against a run of the same manifest without "
        "faults. Written by `volunteer chaos`.",
        f"```\n{text_report(report)}\n```",
        LEGEND,
        *([LOCAL] if asked.averaging == "local" else []),
        "\n".join(f"- {kind}: {what}" for kind, what in MEANINGS.items() if kind in kinds),
    ]
    return "\n\n".join(parts) + "\n"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _relative(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.1e}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
