"""Finds the running node for a command: that of this home, else the only service of this machine.

If none runs, the error says how and why the newest run of this home ended.
"""

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from client.cli.reach.home import running_home
from client.cli.reach.services import service_sockets
from client.control.client import ControlClient, NotRunning, running_nodes
from client.control.snapshot import Snapshot
from client.control.sockets import live_sockets
from client.errors import ExitCode, UsageError, UserError
from client.store.last_run import LastRun, RunRecord
from client.store.paths import HOME_VARIABLE, Folders

OTHERS: Final = "for one of another home: VOLUNTEER_HOME=HOME volunteer ..."
ENDING_S: Final = 10.0
"""A node closes its control socket some moments before its process ends."""
LOOK_S: Final = 0.05


@contextmanager
def connect(folders: Folders | None = None) -> Iterator[ControlClient]:
    """Connect to the node; ``folders`` have the control socket of a home, and the end of its
    newest run; None: those of this home.

    Raises:
        UserError: none runs, or not any longer (exit 3), several do (exit 2), or it does not answer
            (exit 75 or 1).
    """
    folders = folders or running_home().folders
    try:
        with ControlClient(find_socket(folders)) as node:
            yield node
    except NotRunning as error:
        raise not_running(folders) from error


def find_socket(folders: Folders) -> Path:
    """Return the control socket of a node: of this home, else of the services of this machine.

    Raises:
        UserError: none runs (exit 3), several do (exit 2), or one hangs (exit 75).
    """
    own, services = folders.runtime, [p for p in service_sockets() if p != folders.runtime]
    nodes = running_nodes(own) or [node for each in services for node in running_nodes(each)]
    if not nodes:
        mute = [path for each in (own, *services) for path in live_sockets(each)]
        raise _mute(mute[0]) if mute else not_running(folders)
    if len(nodes) > 1:
        raise _several(nodes)
    return nodes[0][0]


def _several(nodes: Sequence[tuple[Path, Snapshot]]) -> UserError:
    """Return the error for several nodes, which their homes tell apart."""
    names = ", ".join(f"{node.swarm_name} ({node.swarm[:12]})" for _, node in nodes)
    homes = [path.parent.parent for path, _ in nodes if path.parent.name == "run"]
    commands = [f"{HOME_VARIABLE}={shlex.quote(str(home))} volunteer ..." for home in homes]
    next_step = "\n  ".join(["choose one by its home:", *commands])
    return UsageError(f"{len(nodes)} volunteers run here: {names}", next_step)


def not_running(folders: Folders) -> UserError:
    """Return the error for a node that is not there; it says how the newest run of this home
    ended."""
    words, start = "no volunteer runs here", "start one: volunteer join --swarm X"
    record = RunRecord(folders.data)
    run, ending = record.running, record.ending()
    if ending is not None:
        words, start = f"{words}; {ending_words(ending)}", ending.next_step
    elif run is not None:
        words = f"process {run.pid} does not answer yet, or no longer answers"
        start = f"it may be starting or ending: read volunteer logs; kill {run.pid} ends it"
    return UserError(words, "\n  ".join(filter(None, (start, OTHERS))), ExitCode.NOT_RUNNING)


def wait_for_ending(folders: Folders, pid: int) -> LastRun | None:
    """Return how process ``pid``, whose control socket has closed, ended.

    Waits for the process to end, at most ``ENDING_S``; None: its end is unknown.
    """
    deadline, record = time.monotonic() + ENDING_S, RunRecord(folders.data)
    while (ending := record.ending(pid)) is None and time.monotonic() < deadline:
        run = record.load()
        if run is None or run.pid != pid:
            return None
        time.sleep(LOOK_S)
    return ending


def ending_words(ending: LastRun) -> str:
    """Return when and how a run ended, as one line."""
    of = f", of {ending.swarm_name}," if ending.swarm_name else ""
    return f"the last one{of} ended {ending.when}: {ending.reason}"


def _mute(path: Path) -> UserError:
    return UserError(
        f"a volunteer listens on {path} but does not answer",
        "read volunteer logs: it may hang, or be another version",
        ExitCode.TEMPORARY,
    )
