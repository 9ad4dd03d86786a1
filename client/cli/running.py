"""Finds the running node that a command is about, among those that this user can reach."""

from __future__ import annotations

from pathlib import Path

from client.control.client import ControlClient, NotRunning, running_nodes
from client.control.methods import Greeting
from client.control.sockets import live_sockets
from client.errors import ExitCode, UserError
from client.store.paths import SYSTEM_HOME, runtime_folder


def connect(folder: Path, swarm: str | None) -> ControlClient:
    """Connect to the node of ``swarm``, or to the only one that runs.

    Args:
        folder: where the control sockets are.
        swarm: beginning of a swarm's id, or its name; None: whichever runs.

    Raises:
        UserError: none runs (exit 3), several do (exit 2), or it does not answer (exit 75 or 1).
    """
    try:
        return ControlClient(find_socket(folder, swarm))
    except NotRunning as error:
        raise not_running(swarm) from error


def find_socket(folder: Path, swarm: str | None) -> Path:
    """Return the control socket of a node: this user's, else the system service's.

    Raises:
        UserError: none runs (exit 3), several do (exit 2), or one hangs (exit 75).
    """
    system = runtime_folder(SYSTEM_HOME)
    nodes = _fitting(folder, swarm) or _fitting(system, swarm)
    if not nodes:
        mute = [] if swarm else [*_listening(folder), *_listening(system)]
        raise _mute(mute[0]) if mute else not_running(swarm)
    if len(nodes) > 1:
        names = ", ".join(f"{node.swarm_name} ({node.swarm[:12]})" for _, node in nodes)
        raise UserError(
            f"{len(nodes)} volunteers run here: {names}", "choose one with --swarm", ExitCode.USAGE
        )
    return nodes[0][0]


def not_running(swarm: str | None) -> UserError:
    """Return the error for a node that is not there."""
    what = f"no volunteer of swarm {swarm} runs" if swarm else "no volunteer runs"
    return UserError(
        f"{what} on this machine", "start one: volunteer join --swarm X", ExitCode.NOT_RUNNING
    )


def _mute(path: Path) -> UserError:
    return UserError(
        f"a volunteer listens on {path} but does not answer",
        "see volunteer logs: it may hang, or be another version",
        ExitCode.TEMPORARY,
    )


def _listening(folder: Path) -> list[Path]:
    try:
        return live_sockets(folder)
    except PermissionError:
        return []  # another user's


def _fitting(folder: Path, swarm: str | None) -> list[tuple[Path, Greeting]]:
    try:
        return [(path, node) for path, node in running_nodes(folder) if _matches(node, swarm)]
    except PermissionError:
        return []  # another user's


def _matches(node: Greeting, swarm: str | None) -> bool:
    return swarm is None or swarm == node.swarm_name or node.swarm.startswith(swarm)
