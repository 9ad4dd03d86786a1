"""A model of a Hugging Face folder: its spec and its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from model_zoo.huggingface.config import is_tied, to_spec
from model_zoo.huggingface.shards import FolderError, Shards, open_shards, read_json
from model_zoo.huggingface.stored import is_transposed, stored_shapes, tensor_shapes
from model_zoo.specs.family import OUTPUT, Tensors
from model_zoo.specs.model import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DTYPES: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types that weights may have, as safetensors and torch name them."""
_BUFFERS: Final = (
    *(".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"),
    *(".attention.bias", ".attention.masked_bias"),
)
"""Endings of tensors that are no weights: older files have them."""


def torch_dtype(name: str) -> torch.dtype:
    """Return the type that safetensors calls by this name, one of ``DTYPES``."""
    import torch

    found: torch.dtype = getattr(torch, DTYPES[name])
    return found


@dataclass(frozen=True, slots=True)
class Imported:
    """An opened folder.

    Fields:
        spec: the model.
        was_tied: whether its output projection is a copy of the embedding.
    """

    spec: ModelSpec
    was_tied: bool
    shards: Shards
    _places: dict[str, list[str]]
    _shapes: Tensors

    @property
    def names(self) -> list[str]:
        """Names of the parameters, in the model's order."""
        return list(self._places)

    def dtype(self, name: str) -> str:
        """Return the type of a parameter as it is stored; F32 if its parts differ."""
        stored = {self.shards[part].dtype for part in self._places[name]}
        return stored.pop() if len(stored) == 1 else "F32"

    def tensor(self, name: str) -> Tensor:
        """Read a parameter, in the type of ``dtype``."""
        import torch

        dtype = torch_dtype(self.dtype(name))
        parts = [self.shards[part].read().to(dtype) for part in self._places[name]]
        found = torch.cat(parts).view(self._shapes[name]) if len(parts) > 1 else parts[0]
        return found.t().contiguous() if is_transposed(self.spec, name) else found


@contextmanager
def open_folder(
    folder: Path, context: int | None = None, *, tied: bool = False
) -> Iterator[Imported]:
    """Open a folder with ``config.json`` and safetensors; check that it has just that model.

    Args:
        folder: as ``save_pretrained`` writes it.
        context: longest sequence to train, tokens; None: the model's own.
        tied: leave a model tied that is; otherwise its output projection becomes a copy of the
            embedding.

    Raises:
        FolderError: it cannot be imported; says why.
    """
    if not folder.is_dir():
        raise FolderError(f"{folder} is not a folder")
    config = read_json(folder / "config.json")
    try:
        spec = to_spec(config, context)
    except (ValueError, TypeError) as error:
        raise FolderError(f"{folder} cannot be imported: {error}") from error
    shared = is_tied(config)
    if shared and tied:
        spec = replace(spec, tied=True)
    with open_shards(folder) as shards:
        places = _places(spec, shards, tied=shared, folder=folder)
        yield Imported(spec, shared and not tied, shards, places, tensor_shapes(spec))


def _places(spec: ModelSpec, shards: Shards, *, tied: bool, folder: Path) -> dict[str, list[str]]:
    """Return the tensors that make up each parameter, by their names in this folder."""
    places: dict[str, list[str]] = {}
    output = f"{OUTPUT}.weight"
    for name, whole in tensor_shapes(spec).items():
        source = spec.token_embedding if tied and name == output else name
        places[name] = []
        for part, shape in stored_shapes(spec, source, whole).items():
            stored = _stored(part, f"{spec.facts.decoder}.", shards)
            if problem := _problem(stored, shape, shards):
                raise FolderError(f"{folder}: tensor {part} {problem}")
            places[name].append(stored)
    used = {part for parts in places.values() for part in parts}
    allowed = {output, f"{spec.facts.output}.weight"} if tied else set()
    for name in sorted(shards.keys() - used - allowed):
        if not name.endswith(_BUFFERS):
            raise FolderError(f"{folder}: tensor {name} is not one of the model's")
    return places


def _stored(name: str, prefix: str, shards: Shards) -> str:
    """The name that a tensor has in the files: those of the bare model leave the prefix out."""
    return name if name in shards else name.removeprefix(prefix)


def _problem(name: str, shape: tuple[int, ...], shards: Shards) -> str | None:
    if name not in shards:
        return "is missing"
    entry = shards[name]
    if entry.shape != shape:
        return f"should have the shape {shape}, it has {entry.shape}"
    if entry.dtype not in DTYPES:
        return f"has the type {entry.dtype}; supported are {', '.join(DTYPES)}"
    return None
