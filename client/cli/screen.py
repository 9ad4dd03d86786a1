"""Shows a running node: in the terminal interface, or a line a step without it."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from client.cli.reach.running import ending_words, not_running, wait_for_ending
from client.cli.terminal.output import json_line, printable, say, versioned
from client.control.client import ControlClient, NotRunning
from client.errors import ExitCode
from client.store.last_run import RunRecord
from client.store.paths import Folders
from client.views.status import one_line

LOOK_S = 1.0
LEFT_RUNNING = "it continues in the background; volunteer attach shows it, volunteer finish ends it"


def can_draw() -> bool:
    """Whether there is a terminal in which an interface can be drawn, which takes Unicode."""
    known = os.environ.get("TERM", "dumb") not in ("dumb", "vt100", "vt220")
    return sys.stdin.isatty() and sys.stdout.isatty() and known and speaks_unicode()


def speaks_unicode(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the locale is one of UTF-8, or there is none: terminals without any show UTF-8."""
    locale = next((environ[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(n)), "")
    return not locale or "utf8" in locale.lower().replace("-", "")


def show(socket: Path, folders: Folders) -> int:
    """Show the node that listens on ``socket`` until the user leaves; the node continues.

    Args:
        socket: its control socket.
        folders: of the home that records the node's end.
    """
    if not can_draw():
        return follow(socket, folders)
    from client.ui.app import run
    from client.ui.source.live import LiveSource

    return run(LiveSource(socket, RunRecord(folders.data).ending))


def follow(socket: Path, folders: Folders, *, as_json: bool = False) -> int:
    """Print a line whenever the node's step or state changes, until it ends or Ctrl-C detaches.

    Returns: The node's exit code, if it is known.
    """
    try:
        node = ControlClient(socket)
    except NotRunning as error:
        raise not_running(folders) from error
    shown = None
    try:
        with node:
            while True:
                now = node.status()
                if shown != (shown := (now.state, now.step)):
                    line = json_line(versioned(now)) if as_json else printable(one_line(now))
                    print(line, flush=True)
                time.sleep(LOOK_S)
    except NotRunning:
        ending = wait_for_ending(folders, node.greeting.pid)
        say(ending_words(ending) if ending else "the volunteer has ended")
        return ExitCode.RUNTIME if ending is not None and ending.failed else ExitCode.OK
    except KeyboardInterrupt:
        say(LEFT_RUNNING)
        return ExitCode.OK
