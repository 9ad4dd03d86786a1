"""The file with the parameters that a stage of an imported model begins with, or keeps frozen
beside its adapters.

A safetensors file with the tensors of `model_zoo.specs.state` in their order, under our names, each
in the type that it was published in, so that a model in bf16 is sent in bf16. The manifest has its
size and its hash (`state_hash.py`); the bytes follow from the model and the cut alone.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from client.compute.checkpoint import reading
from client.compute.errors import CheckpointError
from client.compute.replica import Replica
from client.compute.requests import LoadStart
from client.compute.saving import written
from model_zoo.huggingface.imports import Imported, torch_dtype
from model_zoo.models.family import State
from model_zoo.models.lora import kept
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice
from model_zoo.specs.state import Layout, stage_layout
from model_zoo.specs.state_hash import LeafHasher, root
from model_zoo.specs.tensor_headers import Described, encoded_header, read_header

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
    """Write the start of a stage, one tensor in memory at a time; ``path`` returns that of the file
    with a digest, in an existing folder.

    Raises:
        NotFinite: a tensor has numbers that are infinite or none.
        DiskError: the file could not be completed.
    """
    layout, hasher = stage_layout(imported.spec, part), LeafHasher()
    unfinished = path(f".start-{part.index}.{os.getpid()}.tmp")
    described = {name: Described(imported.dtype(name), shape) for name, shape in layout}
    header = memoryview(encoded_header(described))
    with written(unfinished) as file:
        for piece in chain([header], (_bytes(imported, name) for name, _ in layout)):
            hasher.update(piece)
            file.write(piece)
    digest = root(0, hasher.digests)
    final = unfinished.replace(path(digest))
    return Written(final, digest, final.stat().st_size)


def _bytes(imported: Imported, name: str) -> memoryview:
    tensor = imported.tensor(name)
    if not torch.isfinite(tensor).all():
        raise NotFinite(f"tensor {name} has numbers that are not finite")
    return tensor.flatten().view(torch.uint8).numpy().data


def load_start(replica: Replica, request: LoadStart) -> None:
    """Begin with the parameters in a file; nothing changes before all of it is verified. Where the
    stage has adapters they and the version stay: the file has what is frozen beside them.

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


def read_start(path: Path, spec: ModelSpec, part: StageSlice, digest: str) -> State:
    """Return the parameters of a start file by name, each in the type that it has there.

    ``spec`` is the model, whose adapters are not in the file, ``digest`` the file's hash, hex.

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
        with reading(path) as file:
            _read(file, layout, digest, take)
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not the start of this stage: {error}") from error


def _read(file: BinaryIO, layout: Layout, digest: str, take: _Take) -> None:
    """See `_read_verified`; raises ``ValueError`` where the file is another."""
    header, tensors, _ = read_header(file)
    if tuple((name, tensor.shape) for name, tensor in tensors.items()) != layout:
        raise ValueError("its tensors are those of another model")
    if header != encoded_header(tensors):
        raise ValueError("its header is not what its fields say")
    hasher = LeafHasher()
    hasher.update(memoryview(header))
    for name, tensor in tensors.items():
        data = bytearray(tensor.size_bytes)
        if file.readinto(data) < len(data):  # type: ignore[attr-defined]
            raise ValueError("it is too short")
        hasher.update(memoryview(data))
        take(name, torch.frombuffer(data, dtype=torch_dtype(tensor.dtype)).view(tensor.shape))
    if root(0, hasher.digests) != digest:
        raise ValueError("its digest differs")
