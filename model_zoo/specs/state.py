"""The layout of a stage's state: its tensors, their order, their type and their size.

A state is one vector of N numbers after the other, its sections: the parameters, and what the
optimizer that makes versions keeps. In every section the tensors lie in the same order, matrices
first. Checkpoints, transfers and hashes have it so.

Shapes: N parameters of the stage.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import BOUNDARIES
from model_zoo.specs.optimizer import DEFAULT, OPTIMIZERS
from model_zoo.specs.slices import StageSlice, stage_tensors

NUMBER_BYTES = 4
"""Of every number of a state, which is in fp32."""

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Parameters by name with their shapes, in the order of a section."""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The layout of the state of every stage of a run.

    Fields:
        optimizer: of the zoo, by name; in local rounds the outer one.
    """

    optimizer: str = DEFAULT

    @property
    def sections(self) -> tuple[str, ...]:
        """The prefixes of tensor names, one per section, in order; the first section holds the
        parameters under their own names."""
        kept = (f"{vector}/" for vector in OPTIMIZERS[self.optimizer].vectors)
        return "", *kept

    @property
    def bytes_per_parameter(self) -> int:
        """Size of a state over N: what is saved, and what a newcomer downloads."""
        return NUMBER_BYTES * len(self.sections)

    def tensors(self, layout: Layout) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return the tensors of all sections in order, with their shapes."""
        for prefix in self.sections:
            for name, shape in layout:
                yield prefix + name, shape


ADAMW_STATE = StateSpec()
"""Of runs with AdamW that average in every step."""


def section_order(tensors: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the names in the order of a section: what decays, then all others.

    Args:
        tensors: shapes by name, in the model's order.
    """
    return sorted(tensors, key=lambda name: not decays(name, tensors[name]))  # stable


def decays(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter decays: matrices do, but for those of narrow boundaries."""
    return len(shape) >= 2 and not name.startswith(BOUNDARIES)


def stage_layout(spec: ModelSpec, part: StageSlice) -> Layout:
    """Return the layout of a stage."""
    tensors = stage_tensors(spec, part)
    return tuple((name, tensors[name]) for name in section_order(tensors))


def size(layout: Layout) -> int:
    """Return N."""
    return sum(math.prod(shape) for _, shape in layout)
