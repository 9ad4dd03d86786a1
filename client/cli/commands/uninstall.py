"""``volunteer uninstall``: removes the volunteer's files and services from this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct

from client.cli.cached import remove_tree
from client.cli.commands.service import remove_own
from client.cli.reach.home import Home, find_home
from client.cli.terminal.ask import confirmed
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
from client.control.sockets import live_sockets
from client.errors import ExitCode, UserError
from client.store.atomic import is_temporary
from client.store.paths import Entry

CONFIG = ("config.toml", "swarm", "environment")


class Uninstalled(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer uninstall --json``."""

    removed: list[str]
    purged: bool


def uninstall(*, purge: bool = False, yes: bool = False, json: AsJson = False) -> int:
    """Remove the services of this user; with --purge everything the volunteer keeps, too.

    The program itself is removed by what installed it: pipx uninstall volunteer.

    Parameters
    ----------
    purge
        Also remove identity, checkpoints, settings and logs, for good.
    yes
        Do not ask.
    """
    home = find_home()
    if live_sockets(home.folders.runtime):
        raise UserError("a volunteer is running", "volunteer finish", ExitCode.TEMPORARY)
    what = (
        f"identity, checkpoints and everything else in {home.folders.data}"
        if purge
        else "the services of this user"
    )
    if not confirmed(f"Remove {what}?", yes=yes):
        say("nothing was removed")
        return ExitCode.INTERRUPTED
    removed = remove_own()
    if purge:
        _purge(home, removed)
    if json:
        print_json(Uninstalled(removed=[str(path) for path in removed], purged=purge))
    else:
        for path in removed:
            print(path)
    say(f"the program itself is still installed; remove it with: {_how_to_remove()}")
    return ExitCode.OK


def _purge(home: Home, removed: list[Path]) -> None:
    folders = home.folders
    sockets = [path.name for path in folders.runtime.glob("*.sock")]
    try:
        remove_tree(folders.data, [*Entry, *_unfinished(folders.data)], removed.append)
        remove_tree(folders.runtime, sockets, removed.append)
        remove_tree(folders.config, CONFIG, removed.append)
    except OSError as error:
        problem = f"cannot remove {error.filename}: {error.strerror}"
        raise UserError(problem, "fix the permissions, then run it again") from error


def _unfinished(data: Path) -> list[str]:
    """Return the names of files whose writing was interrupted."""
    return [path.name for path in data.glob(".*") if is_temporary(path)]


def _how_to_remove() -> str:
    parts = Path(sys.prefix).parts
    for name, command in (
        ("pipx", "pipx uninstall volunteer"),
        ("uv", "uv tool uninstall volunteer"),
    ):
        if name in parts:
            return command
    return "pip uninstall volunteer"
