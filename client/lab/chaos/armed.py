"""A volunteer that fails as the environment says: ``python -m client.lab.chaos.armed join ...``.

Its workers are started by this module, too, and fail alike.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from client.lab.chaos.failpoints import VARIABLE, Failpoint

COMMAND: Final = (sys.executable, "-m", "client.lab.chaos.armed")
WORKER: Final = "worker"


def arm_writer(failpoint: Failpoint) -> None:
    """Have the writer of states in this process meet a failpoint."""
    from client.compute import saving

    written = saving.written

    @contextmanager
    def armed(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
        with written(path, durable=durable) as file:
            yield file
            failpoint.write(path.name)

    saving.written = armed


def main() -> None:
    """Run a worker, or the command line; a node has no torch, and a worker no trio."""
    failpoint = Failpoint(Path(os.environ[VARIABLE]))
    if sys.argv[1:2] == [WORKER]:
        from client.compute import worker

        arm_writer(failpoint)
        del sys.argv[1]
        sys.exit(worker.main())
    from client.cli.main import main as command_line
    from client.compute import process
    from client.lab.chaos.moments import arm_node

    arm_node(failpoint)
    process.WORKER_COMMAND = (*COMMAND, WORKER)
    command_line()


if __name__ == "__main__":
    main()
