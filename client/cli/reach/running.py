"""Finds the running node for a command, among those that this user can reach.

If none runs, the error says how and why the newest run of this home ended.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from client.cli.reach.services import service_sockets
from client.cli.reach.target import as_name
from client.cli.terminal.when import clock
from client.control.client import ControlClient, NotRunning, running_nodes
from client.control.methods import Greeting
from client.control.sockets import live_sockets
from client.errors import ExitCode, UserError
from client.store.last_run import Ending, RunRecord
from client.store.paths import HOME_VARIABLE, Folders

OTHERS: Final = "volunteer list shows the volunteers of other homes, services and users"
ENDING_S: Final = 10.0
"""A node closes its control socket some moments before its process ends."""
LOOK_S: Final = 0.05


@contextmanager
def connect(folders: Folders, swarm: str | None) -> Iterator[ControlClient]:
    """Connect to the node of ``swarm``, or to the only one that runs.

    Args:
        folders: of this home, with its control sockets and the end of its newest run.
        swarm: beginning of a swarm's id, its name, invite or .swarm file; None: the one that runs.

    Raises:
        UserError: none runs, or not any longer (exit 3), several do (exit 2), or it does not answer
            (exit 75 or 1).
    """
    swarm = as_name(swarm)
    try:
        with ControlClient(find_socket(folders, swarm)) as node:
            yield node
    except NotRunning as error:
        raise not_running(folders, swarm) from error


def find_socket(folders: Folders, swarm: str | None) -> Path:
    """Return the control socket of a node: of this home, else of the services of this machine.

    Raises:
        UserError: none runs (exit 3), several do (exit 2), or one hangs (exit 75).
    """
    swarm = as_name(swarm)
    own, services = folders.runtime, [p for p in service_sockets() if p != folders.runtime]
    nodes = _fitting(own, swarm) or [node for each in services for node in _fitting(each, swarm)]
    if not nodes:
        places = [] if swarm else [own, *services]
        mute = [path for each in places for path in live_sockets(each)]
        raise _mute(mute[0]) if mute else not_running(folders, swarm)
    if len(nodes) > 1:
        raise _several(nodes)
    return nodes[0][0]


def _several(nodes: Sequence[tuple[Path, Greeting]]) -> UserError:
    """Return the error for several nodes; where they share a swarm, only the home tells them
    apart."""
    names = ", ".join(f"{node.swarm_name} ({node.swarm[:12]})" for _, node in nodes)
    next_step = "choose one with --swarm"
    if len({node.swarm for _, node in nodes}) < len(nodes):
        homes = [path.parent.parent for path, _ in nodes if path.parent.name == "run"]
        commands = [f"{HOME_VARIABLE}={shlex.quote(str(home))} volunteer ..." for home in homes]
        next_step = "\n  ".join(["choose one by its home (volunteer list):", *commands])
    return UserError(f"{len(nodes)} volunteers run here: {names}", next_step, ExitCode.USAGE)


def not_running(folders: Folders, swarm: str | None) -> UserError:
    """Return the error for a node that is not there; it says how the newest run of this home
    ended."""
    what = f"no volunteer of swarm {swarm} runs" if swarm else "no volunteer runs"
    words, start = f"{what} here", "start one: volunteer join --swarm X"
    record = RunRecord(folders.data)
    run, ending = record.load(), record.ending()
    if run is not None and _is_of(run.swarm, run.swarm_name, swarm):
        if ending is not None:
            words, start = f"{words}; {ending_words(ending)}", ending.next_step
        elif record.running is not None:
            words = f"process {run.pid} does not answer yet, or no longer answers"
            start = f"it may be starting or ending: read volunteer logs; kill {run.pid} ends it"
    return UserError(words, "\n  ".join(filter(None, (start, OTHERS))), ExitCode.NOT_RUNNING)


def wait_for_ending(folders: Folders, pid: int) -> Ending | None:
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


def ending_words(ending: Ending) -> str:
    """Return when and how a run ended, as one line."""
    of = f", of {ending.swarm_name}," if ending.swarm_name else ""
    code = f" (exit code {ending.exit_code})" if ending.exit_code else ""
    when = "was last seen at" if ending.exit_code is None else "ended at"
    return f"the last one{of} {when} {clock(ending.time)}{code}: {ending.words}"


def _mute(path: Path) -> UserError:
    return UserError(
        f"a volunteer listens on {path} but does not answer",
        "read volunteer logs: it may hang, or be another version",
        ExitCode.TEMPORARY,
    )


def _fitting(folder: Path, swarm: str | None) -> list[tuple[Path, Greeting]]:
    found = running_nodes(folder)
    return [(path, node) for path, node in found if _is_of(node.swarm, node.swarm_name, swarm)]


def _is_of(swarm: str, name: str, wanted: str | None) -> bool:
    return wanted is None or wanted == name or swarm.startswith(wanted)
