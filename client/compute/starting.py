"""The file with the parameters that a stage of an imported model begins with, or keeps frozen
beside its adapters.

A safetensors file with the tensors of `model_zoo.specs.state` in their order, under our names, each
in the type that it was published in, so that a model in bf16 is sent in bf16. The manifest has its
size and its hash (`state_hash.py`); the bytes follow from the model and the cut alone.
"""

import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from client.compute.errors import CheckpointError, CheckpointUnreadable, DiskError
from client.compute.replica import Replica
from client.compute.requests import Loaded, LoadStart
from model_zoo.huggingface.imports import DTYPES, Imported, torch_dtype
from model_zoo.models.family import State
from model_zoo.models.lora import kept
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice
from model_zoo.specs.state import Layout, stage_layout
from model_zoo.specs.state_hash import LeafHasher, root
from model_zoo.specs.tensor_headers import (
    DTYPE_BYTES,
    LENGTH_BYTES,
    Entry,
    encoded_header,
    header_length,
    parse_header,
)

_Take = Callable[[str, Tensor], object]
"""Gets each tensor by name, in the order of the layout."""


class NotFinite(ValueError):
    """A tensor of a model to import has numbers that are infinite or none."""


class Written(NamedTuple):
    """A start file."""

    path: Path
    digest: str
    """Its hash, hex."""
    size_bytes: int


def write_start(imported: Imported, part: StageSlice, path: Callable[[str], Path]) -> Written:
    """Write the start of a stage, one tensor in memory at a time.

    Args:
        imported: the opened model.
        part: the stage.
        path: of the file with a digest, in an existing folder.

    Raises:
        NotFinite: a tensor has numbers that are infinite or none.
        DiskError: the file could not be completed.
    """
    layout = stage_layout(imported.spec, part)
    unfinished = path(f".start-{part.index}.{os.getpid()}.tmp")
    hasher, count = LeafHasher(), 0
    tensors = (_bytes(imported, name) for name, _ in layout)
    try:
        with unfinished.open("wb") as file:
            pieces: Iterable[bytes | memoryview] = chain([_header(imported, layout)], tensors)
            for piece in pieces:
                file.write(piece)
                hasher.update(memoryview(piece))
                count += len(piece)
            file.flush()
            os.fsync(file.fileno())
        digest = root(0, hasher.digests)
        final = path(digest)
        unfinished.replace(final)
    except OSError as error:
        raise DiskError(f"cannot write {unfinished}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return Written(final, digest, count)


def _bytes(imported: Imported, name: str) -> memoryview:
    tensor = imported.tensor(name)
    if not torch.isfinite(tensor).all():
        raise NotFinite(f"tensor {name} has numbers that are not finite")
    return tensor.flatten().view(torch.uint8).numpy().data


def _header(imported: Imported, layout: Layout) -> bytes:
    offset, header = 0, {}
    for name, shape in layout:
        dtype = imported.dtype(name)
        end = offset + DTYPE_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return encoded_header(header)


def load_start(replica: Replica, request: LoadStart) -> Loaded:
    """Begin with the parameters in a file; nothing changes before all of it is verified.

    Where the stage has adapters they and the version stay: the file has what is frozen beside them.

    Raises:
        CheckpointUnreadable: it cannot be read now.
        CheckpointError: it is not the file of that digest, or of another stage.
    """
    lora = replica.module.spec.lora
    layout = stage_layout(replica.module.spec.base, replica.part)
    read = partial(_read_verified, Path(request.path), layout, request.digest)
    if lora is not None:
        own, taken = dict(replica.module.named_parameters()), dict[str, Tensor]()

        def take(name: str, found: Tensor) -> None:
            taken[name] = kept(found.to(replica.wire.device), own[name], lora)

        read(take)
        replica.load_base(taken)
    else:
        values, sizes = replica.flat.gradients, [math.prod(shape) for _, shape in layout]
        places = iter(torch.split(values, sizes))  # of the scratch
        read(lambda _, found: next(places).copy_(found.flatten()))
        zeros = [torch.zeros(1).expand(replica.size)] * (len(replica.state_tensors) - 1)
        replica.replace_state(0, [values, *zeros])
    return Loaded(version=replica.version, hash=replica.state_hash())


def read_start(path: Path, spec: ModelSpec, part: StageSlice, digest: str) -> State:
    """Return the parameters of a start file by name, each in the type that it has there.

    Args:
        path: the file.
        spec: the model; adapters are not in the file.
        part: the stage.
        digest: hash of the file, hex.

    Raises:
        CheckpointUnreadable: it cannot be read now.
        CheckpointError: it is missing, or not the file of that digest, or of another stage.
    """
    found: State = {}
    _read_verified(path, stage_layout(spec.base, part), digest, found.__setitem__)
    return found


def _read_verified(path: Path, layout: Layout, digest: str, take: _Take) -> None:
    """Give the tensors of a file to ``take``; what it has got counts only if nothing is raised."""
    try:
        with path.open("rb") as file:
            found = _read(file, layout, take)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.name} is missing") from error
    except OSError as error:
        raise CheckpointUnreadable(f"cannot read {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not the start of this stage: {error}") from error
    if found != digest:
        raise CheckpointError(f"{path.name} is not the start of this stage: its digest differs")


def _read(file: BinaryIO, layout: Layout, found: _Take) -> str:
    """Give the tensors of the file to ``found``; return the digest of the file."""
    hasher, total = LeafHasher(), file.seek(0, 2)
    file.seek(0)

    def take(count: int) -> bytearray:
        data = bytearray(count)
        if file.readinto(data) < count:  # type: ignore[attr-defined]
            raise ValueError("it is too short")
        hasher.update(memoryview(data))
        return data

    text = bytes(take(header_length(take(LENGTH_BYTES), total)))
    entries = list(parse_header(text, total - LENGTH_BYTES - len(text)).items())
    _check_layout(entries, layout)
    for name, entry in entries:
        start, end = entry.data_offsets
        tensor = torch.frombuffer(take(end - start), dtype=torch_dtype(entry.dtype))
        found(name, tensor.view(entry.shape))
    return root(0, hasher.digests)


def _check_layout(entries: list[tuple[str, Entry]], layout: Layout) -> None:
    offset = 0
    if tuple((name, entry.shape) for name, entry in entries) != layout:
        raise ValueError("its tensors are those of another model")
    for name, entry in entries:
        if entry.dtype not in DTYPES or entry.data_offsets[0] != offset:
            raise ValueError(f"tensor {name} is not where it should be")
        offset = entry.data_offsets[1]
