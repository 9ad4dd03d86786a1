"""The checkpoints on this machine's disk: lists those of this swarm and offers them to others.

Listing reads headers only. A checkpoint is offered only after it was read completely and verified;
that is slow, so it is done once, in a thread, while the node already works.
"""

import trio

from client.compute.checkpoint import CheckpointInfo, examine, read_info
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.store.checkpoints import Checkpoint, CheckpointFolder
from client.train.ports import Ports
from client.train.transfer.blobs import Shelf, filed_state
from protocol.effects import Explain
from protocol.limits import MAX_STEP


def stored_states(folder: CheckpointFolder, swarm: str, stages: int) -> list[CheckpointInfo]:
    """Return the headers of a swarm's checkpoints on disk, by stage and version.

    Files that are damaged, misnamed or of another swarm are renamed and left out; unreadable ones
    are left out."""
    found = []
    for entry in folder.entries():
        try:
            info = checked(read_info(entry.path), swarm, stages)
            if (info.stage, info.version) != (entry.stage, entry.version):
                raise CheckpointError(f"it is version {info.version} of stage {info.stage}")
            found.append(info)
        except CheckpointUnreadable:
            continue
        except CheckpointError:
            folder.condemn(entry)
    return found


def checked(info: CheckpointInfo, swarm: str, stages: int) -> CheckpointInfo:
    """Return ``info`` if it belongs to ``swarm`` with so many ``stages``; else raises
    `CheckpointError`."""
    if info.swarm != swarm:
        raise CheckpointError(f"it is of another swarm ({info.swarm[:12]})")
    if info.stages != stages or info.stage >= stages:
        raise CheckpointError(f"it is stage {info.stage} of {info.stages}, not one of {stages}")
    if info.version > MAX_STEP:
        raise CheckpointError(f"its version {info.version} is not valid")
    return info


async def offer_stored(folder: CheckpointFolder, shelf: Shelf, ports: Ports) -> None:
    """Offer the checkpoints on disk, the newest first.

    Damaged files are reported and renamed; from an unreadable disk nothing is offered."""
    try:
        found = stored_states(folder, ports.swarm, ports.manifest.stage_count)
    except OSError as error:
        words = f"the checkpoints in {folder.folder} cannot be read: {error.strerror}"
        ports.perform(Explain("transfer", words, "warning"))
        return
    for stored in sorted(found, key=lambda stored: -stored.version):
        path = folder.path(stored.stage, stored.version)
        try:
            info, digests = await trio.to_thread.run_sync(examine, path)
        except CheckpointUnreadable as error:
            ports.perform(Explain("transfer", f"{error}; it is not offered", "warning"))
        except CheckpointError as error:
            if path.exists():  # it may have been forgotten meanwhile
                words = f"{error}; it is not used any more"
                ports.perform(Explain("transfer", words, "warning"))
                folder.condemn(Checkpoint(stored.stage, stored.version, path))
        else:
            shelf.put(filed_state(info, digests), path, temporary=False)
