"""A volunteer that fails as the environment says: ``python -m client.lab.chaos.armed join ...``.

Its workers are started by this module, too, and fail alike.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from client import faults
from client.lab.chaos.failpoints import LOG_VARIABLE, VARIABLE, Failpoints

COMMAND: Final = (sys.executable, "-m", "client.lab.chaos.armed")
WORKER: Final = "worker"


def arm(environ: Mapping[str, str]) -> None:
    """Arm this process.

    Raises:
        ConfigError: the variable holds something else than failpoints.
    """
    log = environ.get(LOG_VARIABLE)
    faults.active = Failpoints(environ.get(VARIABLE, ""), Path(log) if log else None)


def main() -> None:
    """Run a worker, or the command line."""
    arm(os.environ)
    if sys.argv[1:2] == [WORKER]:
        from client.compute import worker

        del sys.argv[1]
        sys.exit(worker.main())
    from client.cli.main import main as command_line
    from client.compute import process

    process.WORKER_COMMAND = (*COMMAND, WORKER)
    command_line()


if __name__ == "__main__":
    main()
