"""The checkpoint file of one stage at one version: its format and its verification.

A safetensors file (8 bytes header length, JSON header, data), so that any tool can open it.
`model_zoo.specs.state` defines its tensors, their order and names; the format's name tells the
optimizer. The bytes follow from version, stage and state alone:
replicas write identical files. `hash` in the metadata is the version's hash (`state_hash.py`).
Imports no torch: the node reads and verifies with it too. Holds no state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from client.compute.errors import CheckpointError, CheckpointUnreadable
from model_zoo.specs.optimizer import DEFAULT, OPTIMIZERS
from model_zoo.specs.state import ADAMW_STATE, Layout, StateSpec, size
from model_zoo.specs.state_hash import LEAF_BYTES, LeafHasher, root
from model_zoo.specs.tensor_headers import Described, encoded_header, read_header

NO_HASH = "0" * 64
"""In the place of a hash that is not known yet; a header is as long with any."""
_Number = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,17})\Z")]


def format_name(state: StateSpec) -> str:
    """Return the name that the format has in files of such a state."""
    return f"volunteer-stage-1{'' if state.optimizer == DEFAULT else f'-{state.optimizer}'}"


_STATES = {format_name(state): state for state in map(StateSpec, OPTIMIZERS)}


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The content of a checkpoint's header.

    `layout` names the parameters with their shapes in the order of the data; `hash` is hex;
    `data_start` is the offset of the data in the file, once there is one.
    """

    swarm: str
    stage: int
    stages: int
    version: int
    hash: str
    layout: Layout
    state: StateSpec = ADAMW_STATE
    """The sections of the data."""
    data_start: int = 0
    size_bytes: int = 0

    @property
    def parameters(self) -> int:
        """Number of parameters; the data holds an fp32 number for each in every section."""
        return size(self.layout)


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    swarm: str
    stage: _Number
    stages: _Number
    version: _Number
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


def build_header(info: CheckpointInfo) -> bytes:
    """Return everything before the data, including its length; a multiple of 64 bytes."""
    metadata = {
        "format": format_name(info.state),
        "hash": info.hash,
        "stage": str(info.stage),
        "stages": str(info.stages),
        "swarm": info.swarm,
        "version": str(info.version),
    }
    tensors = info.state.tensors(info.layout)
    return encoded_header({name: Described("F32", shape) for name, shape in tensors}, metadata)


def read_info(path: Path) -> CheckpointInfo:
    """Return a file's header; its size and header are checked, its data is not.

    Raises:
        CheckpointUnreadable: it cannot be read now.
        CheckpointError: the file is missing, damaged or no checkpoint.
    """
    with reading(path) as file:
        return info_of(file)


def examine(path: Path) -> tuple[CheckpointInfo, list[bytes]]:
    """As `read_info`, and check the data against the header's hash; and return the digests of its
    leaves, as a transfer needs them. Reads the whole file: call it in a thread."""
    with reading(path) as file:
        return sound(file, path)


def sound(file: BinaryIO, path: Path) -> tuple[CheckpointInfo, list[bytes]]:
    """As `examine`, of an open file."""
    info, hasher = info_of(file), LeafHasher()
    file.seek(info.data_start)
    for part in iter(lambda: file.read(LEAF_BYTES), b""):
        hasher.update(memoryview(part))
    check_hash(info, root(info.version, hasher.digests), path)
    return info, hasher.digests


def check_hash(info: CheckpointInfo, found: str, path: Path) -> None:
    """Compare the hash of a file's data with that in its header; raises `CheckpointError`."""
    if found != info.hash:
        raise CheckpointError(f"{path.name} is damaged: its data does not match its hash")


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file. What the system says of it in the block becomes an error that distinguishes a
    file that is gone from one that cannot be read now, for instance with too many open files."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        gone = FileNotFoundError, IsADirectoryError, NotADirectoryError
        kind = CheckpointError if isinstance(error, gone) else CheckpointUnreadable
        raise kind(f"cannot read {path.name}: {error.strerror}") from error


def info_of(file: BinaryIO) -> CheckpointInfo:
    """As `read_info`, of an open file."""
    try:
        header, tensors, found = read_header(file)
        metadata = msgspec.convert(found, _Metadata)
        state = _STATES.get(metadata.format)
        if state is None:
            raise ValueError(f"format {metadata.format[:40]!r} is unknown")
    except ValueError as error:
        raise CheckpointError(f"not a checkpoint: {error}") from error
    count = len(tensors) // len(state.sections)
    layout = tuple((name, tensor.shape) for name, tensor in islice(tensors.items(), count))
    stage, stages, version = map(int, (metadata.stage, metadata.stages, metadata.version))
    named = metadata.swarm, stage, stages, version, metadata.hash
    info = CheckpointInfo(*named, layout, state, len(header), file.seek(0, 2))
    if header != build_header(info):
        raise CheckpointError("not a checkpoint: its header is not what its fields say")
    return info
