"""Inject faults into volunteers on this machine and report what each costs.

Group: try and measure

$ volunteer chaos --quick  # a few faults
$ volunteer chaos --minutes 10 --faults kill,stop  # these kinds, for ten minutes
$ volunteer chaos --faults kill@averaging,stage  # these faults only

Faults: kill, stop, worker (each at forward, backward, before-optimizer, after-optimizer, averaging,
recovery, checkpoint), corrupt (at forward, backward, averaging), disk@checkpoint, partition, delay,
slow, stage. The exit code is 1 if anything was lost that need not be.

Writes only to its output folder and a temporary one; leaves no process behind, even after an error.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter, validators

from client.cli.founding.options import AveragingName
from client.cli.terminal.output import json_line, print_json, printable, say
from client.errors import ExitCode, UserError, system_errors
from client.lab.chaos.catalogue import KINDS, Fault, Kind, all_faults, choose_faults, stages_of

if TYPE_CHECKING:
    from client.lab.chaos.ground import Ground
    from client.lab.chaos.report import Report
    from client.lab.chaos.run import Seen
    from client.lab.chaos.schedule import Planned

USUAL: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "stage")
QUICK: tuple[Kind, ...] = ("kill", "stop", "corrupt", "partition")
MIN_VOLUNTEERS_PER_STAGE = 2
BUSY_SHARE = 0.4
"""Share of the machine's cores on which the volunteers compute together. The rest is for their
other work and for restarts, which would not slow others down on machines of their own."""
QUICK_S, QUICK_EVERY_S = 60.0, 15.0
Positive = validators.Number(gt=0)


@dataclass(frozen=True)
class Choices:
    """The options of the command line."""

    volunteers: int
    stages: int
    averaging: AveragingName
    seconds: float
    every_s: float
    seed: int
    faults: tuple[Fault, ...]
    out: Path
    keep_logs: bool
    json: bool

    @property
    def share(self) -> int:
        """Percent of the time that a volunteer may compute."""
        percent = 100 * BUSY_SHARE * (os.cpu_count() or 1) / self.volunteers
        return max(1, min(100, round(percent)))


def chaos(
    *,
    volunteers: Annotated[int, Parameter(validator=validators.Number(gte=2, lte=64))] = 6,
    stages: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=16))] = 2,
    averaging: AveragingName = "every-step",
    minutes: Annotated[float | None, Parameter(validator=Positive)] = None,
    every: Annotated[float | None, Parameter(validator=Positive)] = None,
    faults: str | None = None,
    seed: Annotated[int, Parameter(validator=validators.Number(gte=0, lt=2**62))] = 0,
    quick: bool = False,
    out: Path = Path("chaos-out"),
    keep_logs: bool = False,
    json: bool = False,
) -> int:
    """Do faults to volunteers on this machine and report what they cost.

    Parameters
    ----------
    volunteers
        Processes to start; at least two per stage.
    stages
        Stages to cut the model into.
    averaging
        every-step; or local: rounds of steps of each volunteer's own. Their losses depend on who
        shared a round, so with one stage each run is compared with its own rounds, made again in
        one process, which takes some more minutes.
    minutes
        Measured time of each of the two runs; 5 unless --quick.
    every
        Seconds between faults; 20 unless --quick.
    faults
        Kinds of faults, or faults at moments such as kill@averaging, joined by commas; a wrong name
        shows the right ones.
    seed
        Of the weights, the data and the schedule of faults.
    quick
        About three minutes in all, with few faults.
    out
        Folder for chaos.json and chaos.md.
    keep_logs
        Keep the volunteers' logs in that folder, too.
    json
        Show progress as lines of JSON, and the report as JSON at the end.
    """
    if volunteers < MIN_VOLUNTEERS_PER_STAGE * stages:
        problem = f"{stages} stages need at least {MIN_VOLUNTEERS_PER_STAGE * stages} volunteers"
        raise UserError(problem, "see volunteer chaos --help", ExitCode.USAGE)
    usual = all_faults(QUICK if quick else USUAL)
    chosen = _possible(usual if faults is None else choose_faults(faults), stages)
    seconds, every_s = _pace(minutes, every, quick)
    choices = Choices(
        volunteers, stages, averaging, seconds, every_s, seed, chosen, out, keep_logs, json
    )
    _prepare(out)
    report = perform(choices)
    if json:
        print_json(report)
    else:
        from client.lab.chaos.report import text_report

        print(printable(text_report(report)))
        print(f"report: {out / 'chaos.md'}")
    return ExitCode.OK if report.ok else ExitCode.RUNTIME


def _possible(faults: Sequence[Fault], stages: int) -> tuple[Fault, ...]:
    """Return the faults that are possible with ``stages`` stages.

    Raises:
        UserError: none can.
    """
    possible = tuple(fault for fault in faults if stages_of(fault, stages))
    if not possible:
        raise UserError(f"no such fault is possible with {stages} stages", "", ExitCode.USAGE)
    return possible


def _pace(minutes: float | None, every: float | None, quick: bool) -> tuple[float, float]:
    """Return the length of each run and the interval between faults, seconds.

    Raises:
        UserError: not even one fault fits in.
    """
    seconds = 60.0 * minutes if minutes else QUICK_S if quick else 300.0
    every_s = every or (QUICK_EVERY_S if quick else 20.0)
    if every_s > seconds:
        problem = f"a fault every {every_s:g} s does not fit into {seconds:g} s"
        raise UserError(problem, "give more --minutes or a smaller --every", ExitCode.USAGE)
    return seconds, every_s


def _prepare(out: Path) -> None:
    with system_errors(f"cannot write to {out}", "choose another --out"):
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".chaos"
        probe.touch()
        probe.unlink()


def perform(choices: Choices) -> Report:
    """Do both runs, write the results and return the report.

    Raises:
        UserError: a swarm did not start, or the results cannot be written.
    """
    from client.lab.chaos.ground import chaos_ground
    from client.lab.chaos.schedule import draw_schedule
    from client.lab.local_swarm import terminate_as_interrupt

    schedule = draw_schedule(
        choices.faults,
        seconds=choices.seconds,
        every_s=choices.every_s,
        stages=choices.stages,
        seed=choices.seed,
    )
    # A short path: sockets lie below it.
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as name:
        folder = Path(name)
        ground = chaos_ground(
            folder / "founder",
            stages=choices.stages,
            replicas=choices.volunteers // choices.stages,
            seed=choices.seed,
            averaging=choices.averaging,
        )
        chaotic = _one_run(choices, ground, folder / "c", schedule)
        paired = _one_run(choices, ground, folder / "r", ())
        if choices.averaging == "local" and choices.stages == 1:
            _retrace(choices, ground, chaotic, paired)
    return _write(choices, schedule, chaotic, paired, ground.manifest.microbatches_per_step)


def _one_run(choices: Choices, ground: Ground, folder: Path, schedule: Sequence[Planned]) -> Seen:
    from client.lab.chaos.run import Run

    name = "chaos" if schedule else "paired"
    run = Run(
        ground,
        folder,
        schedule,
        logs=choices.out / "logs" / name if choices.keep_logs else folder / "logs",
        names=[f"v{number}" for number in range(1, choices.volunteers + 1)],
        flags=("--compute-share", str(choices.share)),
        say=_teller(choices, name),
    )
    return run.perform(choices.seconds)


def _teller(choices: Choices, name: str) -> Callable[[str], None]:
    """Return how a run shows a line to the user."""
    begin = time.monotonic()

    def tell(words: str) -> None:
        elapsed_s = round(time.monotonic() - begin, 1)
        if choices.json:
            line = {"run": name, "elapsed_s": elapsed_s, "words": words}
            say(json_line(line))
        else:
            say(f"{name:>6} {elapsed_s:6.1f} s  {words}")

    return tell


def _retrace(choices: Choices, ground: Ground, *runs: Seen) -> None:
    from client.lab.chaos.ledger import shares_of
    from client.lab.chaos.retrace import Rounds, retrace

    _teller(choices, "again")("the rounds of both runs, in one process each")
    shares = (shares_of(seen.notes, stage=0) for seen in runs)
    rounds = [Rounds(ground.manifest, ground.data, shared) for shared in shares]
    for seen, losses in zip(runs, retrace(rounds), strict=True):
        seen.retraced = losses


def _write(
    choices: Choices,
    schedule: Sequence[Planned],
    chaotic: Seen,
    paired: Seen,
    per_step: int,
) -> Report:
    from client.lab.chaos.report import Settings, make_report, markdown

    settings = Settings(
        volunteers=choices.volunteers,
        stages=choices.stages,
        averaging=choices.averaging,
        seconds=choices.seconds,
        every_s=choices.every_s,
        seed=choices.seed,
        faults=[str(planned.fault) for planned in schedule],
        compute_share=choices.share,
        cores=os.cpu_count() or 1,
        load=round(os.getloadavg()[0], 1),
    )
    report = make_report(settings, chaotic, paired, per_step)
    document = msgspec.json.format(msgspec.json.encode(report), indent=1)
    with system_errors(f"cannot write to {choices.out}", "choose another --out"):
        (choices.out / "chaos.json").write_bytes(document + b"\n")
        (choices.out / "chaos.md").write_text(markdown(report), encoding="utf-8")
    return report
