"""``volunteer join``: take part in a swarm until it is done or the user stops it.

Starts the node in this process and, unless headless, one task that shows its progress. The node
never imports torch; its worker is a child process. The first SIGINT or SIGTERM begins an orderly
stop (hand off, checkpoint, exit 0), the second ends the process at once.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from client.cli.flags import Config, SettingFlags, given
from client.cli.home import Home, find_home
from client.cli.output import say
from client.cli.target import read_target
from client.errors import ExitCode, UserError

if TYPE_CHECKING:
    from client.node import NodeOptions


def join(
    *,
    swarm: str,
    headless: bool = False,
    data: Path | None = None,
    exit_when_done: bool = False,
    flags: SettingFlags = SettingFlags(),  # noqa: B008  (frozen)
    config: Config = None,
) -> int:
    """Take part in a swarm's training until it is done or you stop.

    Parameters
    ----------
    swarm
        An invite (volunteer:...), a .swarm file, a member's address, or - to read one from stdin.
    headless
        Show no progress, only messages.
    data
        The swarm's training text, where this machine has it; otherwise it is downloaded.
    exit_when_done
        End when the swarm has done its last step, instead of staying to serve the model.
    """
    home = find_home(given(flags), config)
