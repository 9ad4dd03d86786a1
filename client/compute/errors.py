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
    "internal",
]


class ComputeError(Exception):
    """Base of the errors that a request to the worker can end in; `kind` travels to the node.

    `part` is the place of the payload that is to blame, if one is.
    """

    kind: FailureKind = "internal"

    def __init_subclass__(cls, kind: FailureKind) -> None:
        cls.kind = kind

    def __init__(self, words: str = "", part: int | None = None) -> None:
        super().__init__(words)
        self.part = part


class WrongData(ComputeError, kind="data"):
    """The training data are not there, or not usable."""


class CodecError(ComputeError, kind="codec"):
    """Bytes from outside are not a payload of the expected shape."""


class Unsealed(CodecError, kind="codec"):
    """The bytes are not those that were sealed, whoever has changed them."""


class PoisonedTensor(ComputeError, kind="poisoned"):
    """A tensor of our own holds NaN, infinity or an absurd magnitude: it must not be sent."""


class OutlierTensor(ComputeError, kind="outlier"):
    """A tensor from outside is valid, but far larger or smaller than usual."""


class ShapeError(ComputeError, kind="shape"):
    """A request does not fit the opened stage: wrong tokens, payload count, bounds or spec."""


class StaleRequest(ComputeError, kind="stale"):
    """The request belongs to another step or version than the worker's, or there is no stage."""


class LedgerError(ComputeError, kind="ledger"):
    """A microbatch would count twice, or one that does not count would be taken out."""


class GraphGone(ComputeError, kind="graph"):
    """The forward graph was not kept: ask again and give the stage's input as well."""


class DiskError(ComputeError, kind="disk"):
    """A checkpoint could not be written; an earlier file is unchanged."""


class CheckpointError(ComputeError, kind="checkpoint"):
    """A checkpoint file is damaged, foreign or not the one expected."""


class CheckpointUnreadable(CheckpointError, kind="disk"):
    """The disk or the system does not give a file now; it may be sound."""


class OutOfMemory(ComputeError, kind="oom"):
    """The device or the host could not give the memory a request needs."""


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
