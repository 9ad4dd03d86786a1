"""Errors of the worker, of the channel to it and of received tensors. Imports no torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

FailureKind = Literal[
    "oom",
    "poisoned",
    "outlier",
    "codec",
    "shape",
    "stale",
    "ledger",
    "graph",
    "disk",
    "data",
    "checkpoint",
    "unopened",
    "internal",
]


class ComputeError(Exception):
    """Base of the errors that a request to the worker can end in; `kind` travels to the node.

    `part` is the place of the payload that is to blame, if one is; `parts` are those of all.
    """

    kind: FailureKind = "internal"
    parts: tuple[int, ...] = ()

    def __init__(self, words: str = "", part: int | None = None) -> None:
        super().__init__(words)
        self.part = part


class WrongData(ComputeError):
    """The training data are not there, or not usable."""

    kind: FailureKind = "data"


class CodecError(ComputeError):
    """Bytes from outside are not a payload of the expected shape."""

    kind: FailureKind = "codec"


class PoisonedTensor(ComputeError):
    """A tensor of our own holds NaN, infinity or an absurd magnitude: it must not be sent."""

    kind: FailureKind = "poisoned"


class OutlierTensor(ComputeError):
    """A tensor from outside is valid, but far larger or smaller than usual."""

    kind: FailureKind = "outlier"


class ShapeError(ComputeError):
    """A request does not fit the opened stage: wrong tokens, payload count, bounds or spec."""

    kind: FailureKind = "shape"


class StaleRequest(ComputeError):
    """The request belongs to another step or version than the worker's."""

    kind: FailureKind = "stale"


class LedgerError(ComputeError):
    """A microbatch would count twice, or one that does not count would be taken out."""

    kind: FailureKind = "ledger"


class GraphGone(ComputeError):
    """The forward graph was not kept: ask again and give the stage's input as well."""

    kind: FailureKind = "graph"


class StageNotOpened(ComputeError):
    """The request needs an opened stage and there is none."""

    kind: FailureKind = "unopened"


class DiskError(ComputeError):
    """A checkpoint could not be written; an earlier file is unchanged."""

    kind: FailureKind = "disk"


class CheckpointError(ComputeError):
    """A checkpoint file is damaged, foreign or not the one expected."""

    kind: FailureKind = "checkpoint"


class CheckpointUnreadable(CheckpointError):
    """The disk or the system does not give a file now; it may be sound."""

    kind: FailureKind = "disk"


class OutOfMemory(ComputeError):
    """The device or the host could not give the memory a request needs."""

    kind: FailureKind = "oom"


@contextmanager
def blame(part: int) -> Iterator[None]:
    """Mark a `ComputeError` that leaves the block with the payload it was about."""
    try:
        yield
    except ComputeError as error:
        error.part = part
        raise


class FrameError(Exception):
    """The bytes between node and worker are not a frame: one of the two is broken."""
