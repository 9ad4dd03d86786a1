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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter, validators
from msgspec import structs

from client.cli.founding.options import AveragingName
from client.cli.terminal.output import json_line, print_json, printable, say
from client.errors import ExitCode, UserError, system_errors
from client.lab.chaos.catalogue import KINDS, Fault, Kind, all_faults, choose_faults, stages_of

if TYPE_CHECKING:
    from client.lab.chaos.ground import Ground
    from client.lab.chaos.report import Report, Settings
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
    prepare(out)

    from client.lab.chaos.report import Settings, text_report
    from client.lab.chaos.schedule import draw_schedule

    schedule = draw_schedule(chosen, seconds=seconds, every_s=every_s, stages=stages, seed=seed)
    settings = Settings(
        volunteers=volunteers,
        stages=stages,
        averaging=averaging,
        seconds=seconds,
        every_s=every_s,
        seed=seed,
        faults=[str(planned.fault) for planned in schedule],
        compute_share=_share(volunteers),
        cores=os.cpu_count() or 1,
    )
    report = perform(settings, schedule, out, keep_logs=keep_logs, json=json)
    if json:
        print_json(report)
    else:
        print(printable(text_report(report)))
        print(f"report: {out / 'chaos.md'}")
    return ExitCode.OK if report.ok else ExitCode.RUNTIME


def _share(volunteers: int) -> int:
    """Percent of the time that each of so many volunteers may compute."""
    percent = 100 * BUSY_SHARE * (os.cpu_count() or 1) / volunteers
    return max(1, min(100, round(percent)))


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


def prepare(out: Path) -> None:
    """Make a folder for results; raises ``UserError`` if it cannot be written."""
    with system_errors(f"cannot write to {out}", "choose another --out"):
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".chaos"
        probe.touch()
        probe.unlink()


def perform(
    settings: Settings, schedule: Sequence[Planned], out: Path, *, keep_logs: bool, json: bool
) -> Report:
    """Do both runs, write the results to a folder and return the report.

    Raises:
        UserError: a swarm did not start, or the results cannot be written.
    """
    from client.lab.chaos.ground import chaos_ground
    from client.lab.chaos.report import make_report, markdown
    from client.lab.chaos.run import Run
    from client.lab.local_swarm import terminate_as_interrupt

    seen = []
    # A short path: sockets lie below it.
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
        ground = chaos_ground(
            Path(folder) / "founder",
            stages=settings.stages,
            replicas=settings.volunteers // settings.stages,
            seed=settings.seed,
            averaging=settings.averaging,
        )
        for name, faults in (("chaos", schedule), ("paired", ())):
            run = Run(
                ground,
                Path(folder) / name[0],
                faults,
                logs=out / "logs" / name if keep_logs else Path(folder) / f"logs-{name}",
                names=[f"v{number}" for number in range(1, settings.volunteers + 1)],
                flags=("--compute-share", str(settings.compute_share)),
                say=_teller(name, json=json),
            )
            seen.append(run.perform(settings.seconds))
        if settings.averaging == "local" and settings.stages == 1:
            _teller("again", json=json)("the rounds of both runs, in one process each")
            _retrace(ground, seen)
    settings = structs.replace(settings, load=round(os.getloadavg()[0], 1))
    chaotic, paired = seen
    report = make_report(settings, chaotic, paired, ground.manifest.microbatches_per_step)
    document = msgspec.json.format(msgspec.json.encode(report), indent=1)
    with system_errors(f"cannot write to {out}", "choose another --out"):
        (out / "chaos.json").write_bytes(document + b"\n")
        (out / "chaos.md").write_text(markdown(report), encoding="utf-8")
    return report


def _teller(name: str, *, json: bool) -> Callable[[str], None]:
    """Return how a run shows a line to the user."""
    begin = time.monotonic()

    def tell(words: str) -> None:
        elapsed_s = round(time.monotonic() - begin, 1)
        if json:
            say(json_line({"run": name, "elapsed_s": elapsed_s, "words": words}))
        else:
            say(f"{name:>6} {elapsed_s:6.1f} s  {words}")

    return tell


def _retrace(ground: Ground, runs: Sequence[Seen]) -> None:
    from client.lab.chaos.ledger import shares_of
    from client.lab.chaos.retrace import Rounds, retrace

    shares = (shares_of(seen.notes, stage=0) for seen in runs)
    rounds = [Rounds(ground.manifest, ground.data, shared) for shared in shares]
    for seen, losses in zip(runs, retrace(rounds), strict=True):
        seen.retraced = losses
