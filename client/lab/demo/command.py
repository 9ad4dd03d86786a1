"""Train with four volunteers on this machine, kill one, show that nothing is lost.

Group: try and measure

Founds a swarm on Python's own source text, starts volunteers that connect over real sockets, kills
one in the middle, and ends with a report. Writes only to its output folder and a temporary one;
leaves no process behind, even after an error.
"""

import shutil
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from client.cli.terminal.answer import Answer, answered
from client.errors import ExitCode, UserError, system_errors

MARKER = ".volunteer-demo"
"""Marks the output folder, so that only files of a demo are ever removed."""
MIN_STEPS = 10
Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]


@answered
def demo(
    *,
    steps: Annotated[int, Parameter(validator=validators.Number(gte=MIN_STEPS))] = 240,
    volunteers: Count = 4,
    stages: Count = 2,
    kill: Annotated[bool, Parameter(negative="--no-kill")] = True,
    out: Path = Path("demo-out"),
    timeout_s: Annotated[float, Parameter(validator=validators.Number(gt=0))] = 330.0,
) -> Answer:
    """Train with four volunteers on this machine, kill one, show that nothing is lost.

    Args:
        steps: Optimizer updates to do.
        volunteers: Processes to start.
        stages: Stages to cut the model into; with too few volunteers per stage nobody is killed.
        kill: Kill one volunteer on the way.
        out: Folder for the results; an earlier demo's are replaced.
        timeout_s: Give up training after so many seconds.
    """
    if volunteers < stages:
        problem = f"{stages} stages need at least {stages} volunteers, not {volunteers}"
        raise UserError(problem, "see volunteer demo --help", ExitCode.USAGE)
    prepare_folder(out)

    from client.lab.demo.play import play
    from client.lab.demo.report import report_text

    report = play(
        out, steps=steps, volunteers=volunteers, stages=stages, kill=kill, timeout_s=timeout_s
    )
    code = ExitCode.OK if report.ok else ExitCode.RUNTIME
    return Answer(report, report_text(report), code=code)


def prepare_folder(out: Path) -> None:
    """Empty the folder of an earlier demo, or make a new one.

    Raises:
        UserError: it has other files, or cannot be written.
    """
    with system_errors(f"cannot use {out}", "choose another --out"):
        if not _is_ours(out):
            problem = f"{out} holds something that no demo wrote"
            raise UserError(problem, "choose another folder with --out", ExitCode.CONFIG)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        (out / MARKER).touch()


def _is_ours(out: Path) -> bool:
    """Say whether the folder may be emptied: absent, empty, or an earlier demo's."""
    if not out.exists():
        return True
    return out.is_dir() and ((out / MARKER).is_file() or not any(out.iterdir()))
