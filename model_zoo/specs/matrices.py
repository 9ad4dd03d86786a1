"""The matrices of a stage's layers and boundaries, for optimizers that treat a matrix as one.

A tensor may have several matrices: those of experts, or fused projections below one another.
Embedding, head and the tables of narrow boundaries are no such matrices: their rows belong to
tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from model_zoo.specs.family import prefixed
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import BOUNDARIES, TABLE
from model_zoo.specs.slices import StageSlice
from model_zoo.specs.state import stage_layout


@dataclass(frozen=True, slots=True)
class Matrix:
    """Elements [offset, offset + rows x columns) of a flat buffer, row by row."""

    offset: int
    rows: int
    columns: int

    @property
    def end(self) -> int:
        """First element after it."""
        return self.offset + self.rows * self.columns


def rows_of(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the rows of each matrix of a parameter of the whole model; empty if it has none."""
    if name.startswith(BOUNDARIES) and not name.endswith(f"{TABLE}.weight"):
        return shape[:1]
    if not name.startswith(spec.layers_prefix) or len(shape) < 2:
        return ()
    inner = name.removeprefix(spec.layers_prefix).partition(".")[2]
    each = spec.facts.fused(spec).get(inner, shape[-2:-1])
    return each * math.prod(shape[:-2])


def hidden_matrices(spec: ModelSpec, part: StageSlice) -> tuple[Matrix, ...]:
    """Return the matrices of a stage's layers and boundaries, in the order of a state's section."""
    return tuple(_matrices(spec, part))


def _matrices(spec: ModelSpec, part: StageSlice) -> Iterator[Matrix]:
    offset = 0
    for name, shape in stage_layout(spec, part):
        begin = offset
        for rows in rows_of(spec, name, shape):
            yield Matrix(begin, rows, shape[-1])
            begin += rows * shape[-1]
        offset += math.prod(shape)


def largest_matrix(spec: ModelSpec) -> int:
    """Return the elements of the largest matrix of any layer."""
    tensors = prefixed(f"{spec.layers_prefix}0.", spec.adapter_tensors) or spec.layer_tensors(0)
    sizes = (
        max(rows) * shape[-1]
        for name, shape in tensors.items()
        if (rows := rows_of(spec, name, shape))
    )
    return max(sizes, default=0)


def between(matrices: tuple[Matrix, ...], size: int) -> tuple[tuple[int, int], ...]:
    """Return the stretches of a buffer of ``size`` elements that are in none of the matrices."""
    edges = [0, *(edge for each in matrices for edge in (each.offset, each.end)), size]
    return tuple((a, b) for a, b in list(pairwise(edges))[::2] if a < b)
