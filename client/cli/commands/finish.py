"""Leave the swarm: drain the stages, finish the step, save, say goodbye.

$ volunteer finish  # leave, and wait until it is done
$ volunteer finish --yes  # do not ask, even if the swarm will have to wait

Ctrl-C or SIGTERM to volunteer join --headless does the same; a second one ends it.

Asks first where nobody else serves one of your stages, if there is somebody to ask.
"""

import sys
import time

from client.cli.reach.home import running_home
from client.cli.reach.running import connect, wait_for_ending
from client.cli.terminal.answer import of_node
from client.cli.terminal.ask import confirm
from client.cli.terminal.output import print_json, printable, say
from client.control.client import ControlClient, NotRunning
from client.control.snapshot import SeatView
from client.errors import ExitCode, UserError
from client.views.status import drain_words

LOOK_S = 0.5
LEFT = "it has left the swarm"


def finish(
    *,
    yes: bool = False,
    json: bool = False,
    wait_s: float = 300.0,
    discard: bool = False,
) -> int:
    """Drain every stage: take no new work, close the running step, save, say goodbye.

    Args:
        yes: Do not ask.
        json: Print JSON when it is done.
        wait_s: Longest wait for the volunteer to be gone, in seconds; 0: do not wait.
        discard: Leave also if the disk does not take the last version and nobody else has it.
    """
    folders = running_home().folders
    with connect(folders) as node:
        greeting = node.greeting
        now = node.status()
        words, _ = drain_words(now)
        if not yes:
            _ask(now.seats, words)
        node.finish(discard=discard)
        if not json:
            print(printable(words), flush=True)
        left = _wait_until_gone(node, wait_s)
        ending = wait_for_ending(folders, greeting.pid) if left else None
    if json:
        print_json(of_node(greeting, leaving=now.seats, left=left))
    if ending is not None and ending.failed:
        code = ExitCode(ending.exit_code or ExitCode.RUNTIME)
        raise UserError(ending.reason, ending.next_step, code)
    if wait_s and not left:
        raise UserError(
            f"it has not drained after {wait_s:g} s",
            "it continues to drain; watch it with: volunteer status --watch",
            ExitCode.TEMPORARY,
        )
    if left and not json:
        say(LEFT)
    return ExitCode.OK


def _ask(seats: list[SeatView], words: str) -> None:
    """Ask whether to leave although the swarm will have to wait; only at a terminal."""
    if any(seat.staying == 0 for seat in seats) and sys.stdin.isatty():
        say(words)
        confirm("Leave anyway?", yes=False)


def _wait_until_gone(node: ControlClient, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    said = ""
    while time.monotonic() < deadline:
        try:
            reason = node.status().reason
        except NotRunning:
            return True
        if reason != said:
            said = reason
            say(reason)
        time.sleep(LOOK_S)
    return False
