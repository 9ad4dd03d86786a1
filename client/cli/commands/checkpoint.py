"""List and verify the checkpoints on this machine.

Group: the model

$ volunteer checkpoint ls  # what is on this machine
$ volunteer checkpoint verify  # read all of it and compare it with the hashes
"""

from __future__ import annotations

from pathlib import Path

from client.cli.command_table import nested_app
from client.cli.models.checkpoint_files import Listing, SwarmView, look
from client.cli.reach.home import Home, find_home
from client.cli.reach.target import as_name
from client.cli.terminal.answer import Answer, answered
from client.errors import ExitCode, UserError
from client.store.swarms import SwarmStore
from client.views.words import duration as human_duration
from client.views.words import size as human_bytes

HASH_CHARS = 12

app = nested_app("checkpoint")


@app.command
@answered
def ls(*, swarm: str | None = None) -> Answer:
    """List the checkpoints on this machine: stage, version, size, age, hash.

    Reads only their headers. Example: volunteer checkpoint ls --swarm my-swarm

    Parameters
    ----------
    swarm
        Name or beginning of the id of the swarm (default: all).
    """
    return _look(find_home(), swarm, whole=False)


@app.command
@answered
def verify(*, swarm: str | None = None) -> Answer:
    """Read all checkpoints on this machine and compare them with their hashes.

    Ends with 1 if one is damaged. Example: volunteer checkpoint verify

    Parameters
    ----------
    swarm
        Name or beginning of the id of the swarm (default: all).
    """
    return _look(find_home(), swarm, whole=True)


def _look(home: Home, swarm: str | None, *, whole: bool) -> Answer:
    views = [look(folder, folder.name, name, whole=whole) for folder, name in _folders(home, swarm)]
    words = "\n\n".join(map(_text, views)) or "no checkpoint lies on this machine"
    damaged = any(file.problem for view in views for file in view.files)
    code = ExitCode.RUNTIME if whole and damaged else ExitCode.OK
    return Answer(Listing(swarms=views), words, code=code)


def _folders(home: Home, swarm: str | None) -> list[tuple[Path, str]]:
    """The folders of checkpoints with their swarms' names."""
    known = SwarmStore(home.folders.swarms).all()
    names = {str(one.swarm): one.manifest.name for one in known}
    root = home.folders.checkpoints("x").parent
    found = sorted(root.iterdir()) if root.is_dir() else []
    folders = [(path, names.get(path.name, "")) for path in found if path.is_dir()]
    if swarm is None:
        return folders
    swarm = as_name(swarm) or swarm
    chosen = [(p, name) for p, name in folders if name == swarm or p.name.startswith(swarm)]
    if not chosen:
        raise UserError(
            f"no checkpoints of a swarm {swarm} lie on this machine",
            "see all of them with: volunteer checkpoint ls",
            ExitCode.USAGE,
        )
    return chosen


def _text(view: SwarmView) -> str:
    name = f"{view.swarm_name or 'unknown swarm'} ({view.swarm[:HASH_CHARS]})"
    lines = [f"{name} in {view.folder}"]
    for file in view.files:
        rest = f"damaged: {file.problem}" if file.problem else file.hash[:HASH_CHARS]
        whole = ", version complete" if file.version in view.complete else ""
        lines.append(
            f"  stage {file.stage:<3} version {file.version:<8} {human_bytes(file.size_bytes):>9}  "
            f"{human_duration(file.age_s):>12} old  {rest}{whole}"
        )
    lines += [] if view.files else ["  no checkpoints"]
    lines += [f"  set aside {Path(path).name}" for path in view.aside]
    return "\n".join(lines)
