"""The wire codecs: the names that a manifest may give, and the bytes that a tensor takes.

A codec that quantises is a line here and an object in ``client.compute.codecs``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

BoundaryCodec = Literal["s8", "s4", "bf16", "fp32"]
"""Of tensors between stages."""
AveragingCodec = Literal["s8", "q4", "q3", "q2", "bf16", "fp32"]
"""Of sums within a stage."""
Codec = BoundaryCodec | AveragingCodec


@dataclass(frozen=True, slots=True)
class WireCodec:
    """What follows from a codec's name.

    Fields:
        block: numbers of the last dimension that are coded together; a dimension is filled up to
            whole blocks.
        block_bytes: of each.
        lossless: whether fp32 numbers come out as they went in.
        vectors: whether it codes vectors alone, in chunks that would cross the rows of a matrix.
        step: between neighbouring values, in parts of a block's largest, where it is so wide that
            a comparison of tensors has to allow for it.
        audited: whether audits tell its rounding from a lie.
    """

    block: int
    block_bytes: int
    lossless: bool = False
    vectors: bool = False
    step: float = 0.0
    audited: bool = True

    def body_bytes(self, shape: Sequence[int]) -> int:
        """Return the size of a tensor's numbers."""
        return math.prod(shape[:-1]) * -(-shape[-1] // self.block) * self.block_bytes

    @property
    def bytes_per_number(self) -> float:
        """Bytes of a number in a long vector."""
        return self.block_bytes / self.block


CODECS: Final[dict[Codec, WireCodec]] = {
    "s8": WireCodec(block=128, block_bytes=2 + 128),
    "bf16": WireCodec(block=1, block_bytes=2),
    "fp32": WireCodec(block=1, block_bytes=4, lossless=True),
    "s4": WireCodec(block=128, block_bytes=2 + 64, step=1 / 7),
    "q2": WireCodec(block=4096, block_bytes=2 * 2 + 1024, vectors=True, audited=False),
    "q3": WireCodec(block=4096, block_bytes=2 + 1536, vectors=True, audited=False),
    "q4": WireCodec(block=4096, block_bytes=2 + 2048, vectors=True, audited=False),
}
