"""``volunteer replay``: plays a recorded run in the terminal interface."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from client.errors import ExitCode, UserError

Speed = Annotated[float, Parameter(validator=validators.Number(gt=0, lte=1000))]


def replay(file: Path, /, *, speed: Speed = 1.0, ascii: bool = False, light: bool = False) -> int:
    """Play a recorded run in the terminal interface; space holds it.

    Parameters
    ----------
    file
        What ``volunteer join --record FILE`` or ``volunteer attach --record FILE`` wrote.
    speed
        Times real time.
    ascii
        Draw with ASCII characters only.
    light
        Light colours.
    """
    if not sys.stdout.isatty():
        problem = "replay needs a terminal"
        raise UserError(problem, "run it without a pipe", ExitCode.USAGE)
    from client.ui.app import run
    from client.ui.source.replay import ReplaySource

    return run(ReplaySource(file, speed), ascii_only=ascii or None, light=light or None)
