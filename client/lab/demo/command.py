"""Train with four volunteers on this machine, kill one, show that nothing is lost.

Group: try and measure

Founds a swarm on Python's own source text, starts volunteers that connect over real sockets, kills
one in the middle, and ends with a report. Writes only to its output folder and a temporary one;
leaves no process behind, even after an error.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from client.cli.terminal.answer import Answer, answered
from client.errors import ExitCode, UserError
from client.lab.demo.folder import prepare_folder

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
        out: Folder for the results; those of an earlier demo are written over.
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
