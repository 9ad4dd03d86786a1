"""A volunteer that fails as the environment says: ``python -m client.lab.chaos.armed join ...``.

Its workers are started by this module, too, and fail alike.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from client.lab.chaos.failpoints import LOG_VARIABLE, VARIABLE, Failpoints

COMMAND: Final = (sys.executable, "-m", "client.lab.chaos.armed")
WORKER: Final = "worker"


def failpoints_of(environ: Mapping[str, str]) -> Failpoints:
    """Return the failpoints that are to be armed.

    Raises:
        ConfigError: the variable holds something else than failpoints.
    """
    log = environ.get(LOG_VARIABLE)
    return Failpoints(environ.get(VARIABLE, ""), Path(log) if log else None)


def arm_writer(failpoints: Failpoints) -> None:
    """Have the writer of states in this process meet failpoints."""
    from client.compute import saving

    write = saving._write

    def armed(path: Path, data: Iterable[memoryview], *, durable: bool) -> None:
        write(path, data, durable=durable)
        failpoints.write(path.name)

    saving._write = armed


def main() -> None:
    """Run a worker, or the command line; a node has no torch, and a worker no trio."""
    failpoints = failpoints_of(os.environ)
    if sys.argv[1:2] == [WORKER]:
        from client.compute import worker

        arm_writer(failpoints)
        del sys.argv[1]
        sys.exit(worker.main())
    from client.cli.main import main as command_line
    from client.compute import process
    from client.lab.chaos.moments import arm_node

    arm_node(failpoints)
    process.WORKER_COMMAND = (*COMMAND, WORKER)
    command_line()


if __name__ == "__main__":
    main()
