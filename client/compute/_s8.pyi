"""The kernel in C; sizes are checked there and refused with ValueError."""

from _typeshed import ReadableBuffer, WriteableBuffer

def encode(
    numbers: ReadableBuffer,
    width: int,
    body: WriteableBuffer,
    factors: ReadableBuffer | None,
    rotated: bool,
    variant: int,
) -> bool: ...
def decode(
    numbers: WriteableBuffer,
    width: int,
    body: ReadableBuffer,
    factors: ReadableBuffer | None,
    rotated: bool,
    variant: int,
) -> bool: ...
def channel_sums(
    numbers: ReadableBuffer, width: int, totals: WriteableBuffer, variant: int
) -> None: ...
def probe(
    numbers: ReadableBuffer, width: int, step: int, variant: int
) -> tuple[float, float, float]: ...
def variants() -> list[str]: ...
