"""The checks of ``volunteer doctor`` for what lies in a home: its key, lock, swarms, checkpoints.

They read small files, and of checkpoints the headers.
"""

from collections.abc import Iterator
from pathlib import Path

from client.cli.diagnosis.checks import Check
from client.compute.checkpoint import read_info
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.control.sockets import SUFFIX, is_alive
from client.errors import UserError
from client.quantities import plural
from client.store.checkpoints import DAMAGED, Checkpoint, CheckpointFolder
from client.store.identity import KEY_FILE, load_identity
from client.store.last_run import RunRecord
from client.store.lock import lock_holder
from client.store.paths import make_private
from client.store.swarms import SUFFIX as SWARM_SUFFIX
from client.train.transfer.inventory import checked
from protocol.errors import ProtocolError, RemoteProtocolError
from protocol.invite import MAX_SWARM_FILE_CHARS, parse_swarm_file
from protocol.manifest import is_of_another_version
from protocol.wire.envelope import Signer


def check_identity(data: Path) -> Check:
    """The private key, if there is one, is whole and readable by its owner alone."""
    try:
        seed = load_identity(data)
    except UserError as error:
        return Check("identity", "fail", error.message, error.next_step)
    if seed is None:
        return Check("identity", "ok", "none yet; the first join creates one")
    return Check("identity", "ok", f"{Signer(seed).peer}, in {data / KEY_FILE}")


def check_lock(data: Path) -> Iterator[Check]:
    """Nobody else uses the identity: yields a check only if a process does that is not the
    volunteer of this home."""
    process = lock_holder(data)
    if process and RunRecord(data).running is None:
        words = f"process {process} uses this identity; a volunteer cannot start beside it"
        step = f"wait until it has ended, or end it: kill {process}"
        yield Check("lock", "fail", words, step)


def check_runtime_folder(folder: Path) -> Check:
    """The control socket can be made where only this user may connect."""
    try:
        make_private(folder)
        stale = [path for path in folder.glob(f"*{SUFFIX}") if not is_alive(path)]
    except UserError as error:
        return Check("control socket", "fail", error.message, error.next_step)
    if stale:
        words = f"{folder}; {stale[0].name} is left from a volunteer that was killed"
        return Check("control socket", "ok", words, "nothing: the next start replaces it")
    return Check("control socket", "ok", str(folder))


def check_swarm_files(folder: Path) -> Iterator[Check]:
    """Every remembered swarm can be read."""
    for path in sorted(folder.glob(f"*{SWARM_SUFFIX}")):
        try:
            with path.open(encoding="utf-8") as file:
                parse_swarm_file(file.read(MAX_SWARM_FILE_CHARS + 1))
        except OSError as error:
            words = f"{path}: {error.strerror}"
            step = f"move it away, or make it a readable file: chmod 600 {path}"
            yield Check("swarm files", "fail", words, step)
        except (UnicodeDecodeError, ProtocolError) as error:
            yield _unusable(path, error)


def _unusable(path: Path, error: Exception) -> Check:
    if isinstance(error, RemoteProtocolError) and is_of_another_version(error):
        words = f"{path} is of another version of this program: {error}"
        step = "run the version that the swarm's members run; keep the file"
        return Check("swarm files", "fail", words, step)
    words = f"{path} is damaged, so its swarm counts as unknown"
    step = f"rm {path}, then join again with an invite or the .swarm file; the rest is kept"
    return Check("swarm files", "fail", words, step)


def check_checkpoints(folder: Path) -> Iterator[Check]:
    """Every swarm's folder can be read; no checkpoint was found damaged when it was read last, and
    none has a damaged header now."""
    found = []
    for swarm in sorted(folder.glob("*")):
        try:
            entries = CheckpointFolder(swarm).entries()
        except OSError as error:
            words = f"{swarm}: {error.strerror}"
            step = f"check the disk, or make it readable: chmod 700 {swarm}"
            yield Check("checkpoints", "fail", words, step)
            continue
        found += [entry.path for entry in entries if _is_damaged(entry, swarm.name)]
        found += sorted(swarm.glob(f"*{DAMAGED}*"))
    if found:
        words = f"{plural(len(found), 'checkpoint')} damaged and not used, such as {found[0]}"
        step = "check the disk; other members replace what is damaged"
        yield Check("checkpoints", "warn", words, step)


def _is_damaged(entry: Checkpoint, swarm: str) -> bool:
    """Whether a checkpoint is useless for good; not: whether the disk fails now."""
    try:
        info = read_info(entry.path)
        checked(info, swarm, info.stages)
    except CheckpointUnreadable:
        return False
    except CheckpointError:
        return entry.path.exists()  # the volunteer may have removed it meanwhile
    return (info.stage, info.version) != (entry.stage, entry.version)
