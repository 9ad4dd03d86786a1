"""Moments at which the laboratory makes a volunteer fail; a user's volunteer has none.

``active`` is None, and that is all that a hook checks, unless `client.lab.chaos.armed` has started
the process.
"""

from __future__ import annotations

from typing import Literal, Protocol

Phase = Literal[
    "forward",
    "backward",
    "before-optimizer",
    "after-optimizer",
    "averaging",
    "recovery",
    "checkpoint",
]
"""Moments of a step at one replica.

forward: its forward is computed and goes out (last stage: is about to be computed).
backward: its gradient is counted and goes out (stage 0: is about to be computed).
averaging: its contribution is out, those to its shard are here, nothing is summed yet.
before-optimizer: it knows the commit and has applied nothing.
after-optimizer: it has applied and told nobody.
recovery: it re-routes a microbatch, or is about to download a stage's state.
checkpoint: it is about to write its state.
"""


class Failpoints(Protocol):
    """The faults that are armed in this process."""

    def reach(self, phase: Phase, step: int, stage: int, worker: int) -> None:
        """Pass a moment: a failpoint set for it hits this process, or the worker with that process
        id."""

    def sent(self, payload: bytes, phase: Phase, step: int, stage: int) -> bytes:
        """Return a payload that goes out, damaged if a failpoint says so."""

    def write(self, name: str) -> None:
        """Raise ``OSError`` as on a full disk if a failpoint is set for this file of a state."""


active: Failpoints | None = None
