"""Narrow boundaries: between two stages a token is K numbers, not the C of the residual stream.

Most of what a token is there follows from which token it is (of a trained boundary's variance 77 to
92 %), and that every stage is told. So each end has a table of that, one of V rows, and only the
rest is sent: z = E (x - g[t]), and x' = f[t] + D z behind it. The sending stage trains E, and g,
which becomes the mean of x; the receiving one trains f and D. The uncut model has both ends, at the
same layers: it computes the same.

Shapes: K numbers of a boundary, C width, V vocabulary.
"""

from model_zoo.specs.architecture import Shape, Width
from model_zoo.specs.description import Ranged

BOUNDARIES = "boundaries."
"""Beginning of the names of all their parameters; the layer's number follows."""
TABLE, PROJECTION = "table", "projection"
MAX_VOCAB = 1 << 14
NOT_PLAIN = (
    "the model has narrow boundaries between its layers, which cannot be folded into these: what a "
    "boundary leaves of its input passes by the layers, too"
)
ROW = 128
"""Numbers that a codec rounds together: narrower boundaries have several tokens in a row."""


class Narrow(Ranged, frozen=True):
    """Where a model has narrow boundaries, and how narrow they are.

    Fields:
        width: K.
        layers: those that begin behind a boundary: every stage's first but the first one's.

    Raises:
        ValueError: a number is out of range.
    """

    width: Width
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % ROW and ROW % self.width:
            raise ValueError(
                f"narrow.width {self.width} neither divides {ROW} nor is a multiple of it: the "
                "codecs round so many numbers together"
            )
        if not self.layers:
            raise ValueError("narrow.layers names no layer: one stage has no boundary")
        if list(self.layers) != sorted({*self.layers}):
            raise ValueError("narrow.layers are not in order, each once")

    def problem(self, shape: Shape) -> str | None:
        """Say in words why a model of this shape cannot have these boundaries, or None."""
        if shape.lora is not None:
            return (
                "narrow boundaries are learned with all else, and beside adapters all else is "
                "frozen: leave one of them out"
            )
        if shape.tied:
            return "a model whose output projection is its embedding is one stage, without boundary"
        if self.width >= shape.width:
            return f"boundaries of {self.width} numbers are not below the width of {shape.width}"
        if shape.vocab > MAX_VOCAB:
            size = 8 * shape.vocab * shape.width / 1e6
            return (
                f"narrow boundaries have two tables of the vocabulary each: with {shape.vocab:,} "
                f"tokens {size:,.0f} MB a boundary, to be averaged and loaded as all else; up to "
                f"{MAX_VOCAB:,} tokens they pay"
            )
        if not 1 <= self.layers[0] <= self.layers[-1] < shape.layers:
            return f"narrow.layers must lie between 1 and {shape.layers - 1}"
        if shape.context * self.width % ROW:
            return (
                f"{shape.context} tokens of {self.width} numbers do not fill rows of {ROW}: take a "
                f"context that is a multiple of {ROW // self.width}"
            )
        return None


def joined(sequences: int, tokens: int, width: int) -> tuple[int, int, int]:
    """Return the shape in which (B, T, K) is coded: rows of as many tokens as fill one."""
    row = max(width, ROW)
    return sequences, tokens * width // row, row
