"""Remove a swarm from this machine, with all that is kept of it.

Group: this machine

$ volunteer forget my-swarm  # asks where checkpoints would be lost

Asks first where its checkpoints, or the invitation by which you belong to it, would be lost.
"""

import shutil
from pathlib import Path

from client.cli.reach.home import Home, find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.ask import confirm
from client.control.client import running_nodes
from client.errors import ExitCode, UsageError, UserError
from client.quantities import plural
from client.store.checkpoints import CheckpointFolder
from client.store.last_run import RunRecord
from client.store.paths import Entry, Kept
from client.store.swarms import SwarmStore
from protocol.address import Address
from protocol.invite import SwarmFile
from protocol.manifest import Manifest


@answered
def forget(swarm: str, /, *, yes: bool = False) -> Answer:
    """Remove a swarm from this machine, with all that is kept of it.

    Args:
        swarm: Its name, id, invite or .swarm file.
        yes: Do not ask.
    """
    home = find_home()
    target, store = find_swarm(home, swarm), SwarmStore(home.folders.swarms)
    found = None if isinstance(target, Address) else store.load(target.swarm)
    if found is None:
        raise UsageError(f"no swarm {swarm} is known on this machine", "")
    name = found.manifest.name
    _refuse_running(home, found)
    if lost := _lost(home, found):
        confirm(f"Remove {name} with {lost}?", yes=yes)
    removed = _remove(home.folders.data, found, _shared(home, found))
    document = {"swarm": found.swarm, "swarm_name": name, "removed": list(map(str, removed))}
    return Answer(document, f"{name} ({found.swarm[:12]}) is not known here any more")


def _refuse_running(home: Home, swarm: SwarmFile) -> None:
    run = RunRecord(home.folders.data).running
    runs = run is not None and run.swarm == swarm.swarm
    if runs or any(node.swarm == swarm.swarm for _, node in running_nodes(home.folders.runtime)):
        words = f"a volunteer takes part in {swarm.manifest.name}"
        raise UserError(words, "volunteer finish, then again", ExitCode.TEMPORARY)


def _lost(home: Home, swarm: SwarmFile) -> str:
    """Say what nobody may be able to bring back; empty: nothing."""
    folder = CheckpointFolder(home.folders.of(swarm.swarm, Kept.CHECKPOINTS))
    checkpoints = len(folder.entries()) + len(folder.aside())
    lost = [plural(checkpoints, "checkpoint")] if checkpoints else []
    if home.folders.of(swarm.swarm, Kept.VOUCHES).exists():
        lost.append("the invitation by which you belong to it")
    return " and ".join(lost)


def _shared(home: Home, swarm: SwarmFile) -> set[str]:
    """Return the digests of the texts that other known swarms train on, too."""
    known = SwarmStore(home.folders.swarms).all()
    return {d for one in known if one.swarm != swarm.swarm for d in _digests(one.manifest)}


def _digests(manifest: Manifest) -> set[str]:
    """Return the digests by which the text store keeps what a run begins with."""
    return {manifest.data.digest, *(start.digest for start in manifest.start)}


def _remove(data: Path, swarm: SwarmFile, keep: set[str]) -> list[Path]:
    """Remove all that is named by the swarm's id, and its texts; return what was removed.

    The description goes last, so that what was interrupted can be said again.
    """
    own = [path for path in data.glob(f"*/{swarm.swarm}*") if path.parent.name != Entry.SWARMS]
    for digest in _digests(swarm.manifest) - keep:
        own += (data / Entry.TEXTS).glob(f"{digest}.*")
    own.sort()
    own += (data / Entry.SWARMS).glob(f"{swarm.swarm}*")
    for path in own:
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            problem = f"cannot remove {error.filename}: {error.strerror}"
            raise UserError(problem, "fix the permissions, then run it again") from error
    return own
