"""The wire codecs: the names that a manifest may give, and the bytes that a tensor takes.

A codec that quantises blocks is a line here and the file of its name in ``client.compute.codecs``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Codec = Literal["s8", "bf16", "fp32"]
AveragingCodec = Codec | Literal["ring16"]
"""``ring16``: masked integers, where sums are secret, and nowhere else."""


@dataclass(frozen=True, slots=True)
class WireCodec:
    """What follows from a codec's name.

    Fields:
        number: by which headers name it.
        element_bytes: of each number; 0: it codes blocks.
        block: numbers of the last dimension that are coded together; a dimension is filled up to
            whole blocks.
        block_bytes: of each.
        lossless: whether fp32 numbers come out as they went in.
    """

    number: int
    element_bytes: int = 0
    block: int = 0
    block_bytes: int = 0
    lossless: bool = False

    def body_bytes(self, shape: Sequence[int]) -> int:
        """Return the size of a tensor's numbers."""
        if self.block:
            return math.prod(shape[:-1]) * -(-shape[-1] // self.block) * self.block_bytes
        return math.prod(shape) * self.element_bytes

    @property
    def bytes_per_number(self) -> float:
        """Bytes of a number in a long vector."""
        return self.block_bytes / self.block if self.block else float(self.element_bytes)


CODECS: Final[dict[AveragingCodec, WireCodec]] = {
    "s8": WireCodec(0, block=128, block_bytes=2 + 128),
    "bf16": WireCodec(1, element_bytes=2),
    "fp32": WireCodec(2, element_bytes=4, lossless=True),
    "ring16": WireCodec(3, element_bytes=2),
}
