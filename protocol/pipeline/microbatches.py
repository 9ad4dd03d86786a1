"""The microbatches that a replica holds, by id, by step and by phase.

A step may have thousands of them, and most messages are about one. So what is asked with every
message (what is counted, what is in flight, what the worker does next) is kept up to date with each
change instead of being looked for. It decides nothing.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from protocol.ids import PeerId


class Phase(enum.Enum):
    """Progress of a microbatch through one stage, between its arrival and the ledger.

        queued -> forward -> sent -> returned -> backward -> done   (stages before the last)
        queued -> forward -> done                                   (last stage)

    ``forward`` and ``backward`` mean: with the worker now. A microbatch never goes backwards; what
    must be repeated (a re-sent boundary) is the business of ``delivery``.
    """

    QUEUED = "queued"
    FORWARD = "forward"
    SENT = "sent"
    RETURNED = "returned"
    BACKWARD = "backward"
    DONE = "done"
    """Its weight gradient is in our accumulator: it is in the ledger."""


@dataclass(slots=True)
class MicrobatchState:
    """A microbatch of one step at this replica."""

    step: int
    microbatch: int
    phase: Phase
    upstreams: dict[PeerId, int] = field(default_factory=dict)
    """Return addresses of the gradient, each with the attempt under which it last sent the
    microbatch; empty at stage 0, more than one while two replicas work on it."""
    giver: PeerId | None = None
    """The sender of the tensor being computed on: the boundary, then its gradient; None at stage 0,
    which reads its own samples."""
    source: PeerId | None = None
    """The sender of the boundary; None at stage 0."""
    again: bool = False
    tokens_bytes: int = 0
    loss_sum: float = 0.0


READY = (Phase.RETURNED, Phase.QUEUED)
"""Phases in which a microbatch waits for the worker, in order of priority."""


class _Step:
    """Those of one step."""

    def __init__(self, per_step: int) -> None:
        self.phases: dict[Phase, set[int]] = {phase: set() for phase in Phase}
        self.ledger = bytearray((per_step + 7) // 8)
        """Bitmap of the counted microbatches, as it is reported."""
        self.in_flight: set[int] = set()
        self.in_flight_bits = bytearray((per_step + 7) // 8)
        self.revision = 0
        self.waiting: list[tuple[bool, int]] = []
        """A heap of all that have waited; what does no more is dropped when it comes to the top."""


class Microbatches:
    """See the module's docstring. Sets that are returned change as the step goes on.

    Args:
        per_step: microbatches of a step.
    """

    def __init__(self, per_step: int) -> None:
        self._per_step = per_step
        self._by_id: dict[int, MicrobatchState] = {}
        self._steps: dict[int, _Step] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[MicrobatchState]:
        return iter(list(self._by_id.values()))

    def get(self, microbatch: int) -> MicrobatchState | None:
        """Return a microbatch, None if we do not hold it."""
        return self._by_id.get(microbatch)

    def add(self, state: MicrobatchState) -> None:
        """Hold a microbatch; one that is held already stays as it is."""
        if state.microbatch not in self._by_id:
            self._by_id[state.microbatch] = state
            self._enter(state)

    def move(self, state: MicrobatchState, phase: Phase) -> None:
        """A microbatch that we hold has come to another phase."""
        self._leave(state)
        state.phase = phase
        self._enter(state)

    def pop(self, microbatch: int) -> MicrobatchState | None:
        """Hold a microbatch no longer."""
        state = self._by_id.pop(microbatch, None)
        if state is not None:
            self._leave(state)
        return state

    def forget(self, step: int) -> None:
        """Hold nothing of a step."""
        for state in self.of(step):
            del self._by_id[state.microbatch]
        self._steps.pop(step, None)

    # --- what is asked ---------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the steps of which we hold or have held something, oldest first."""
        return sorted(self._steps)

    def of(self, step: int) -> list[MicrobatchState]:
        """Return those of one step."""
        if step not in self._steps:
            return []
        return [self._by_id[m] for some in self._steps[step].phases.values() for m in some]

    def done(self, step: int) -> Set[int]:
        """Return the ids of a step that are counted."""
        return self._steps[step].phases[Phase.DONE] if step in self._steps else frozenset()

    def ledger(self, step: int) -> bytes:
        """Return ``done`` as a bitmap."""
        known = self._steps.get(step)
        return bytes(known.ledger if known else (self._per_step + 7) // 8)

    def in_flight(self, step: int) -> Set[int]:
        """Return the ids of a step that are held and not counted."""
        return self._steps[step].in_flight if step in self._steps else frozenset()

    def in_flight_bits(self, step: int) -> bytes:
        """Return ``in_flight`` as a bitmap."""
        known = self._steps.get(step)
        return bytes(known.in_flight_bits if known else (self._per_step + 7) // 8)

    def revision(self, step: int) -> int:
        """Return a number that rises when what is counted of a step, or in flight, changes."""
        return self._steps[step].revision if step in self._steps else 0

    def count(self, step: int, *phases: Phase) -> int:
        """Return how many of a step are in one of these phases."""
        known = self._steps.get(step)
        return sum(len(known.phases[phase]) for phase in phases) if known else 0

    def first_waiting(self, step: int) -> MicrobatchState | None:
        """Return what the worker does next of a step: gradients first, then the oldest."""
        known = self._steps.get(step)
        while known and known.waiting:
            queued, microbatch = known.waiting[0]
            if microbatch in known.phases[READY[queued]]:
                return self._by_id[microbatch]
            heapq.heappop(known.waiting)
        return None

    # --- inside ----------------------------------------------------------------------------

    def _enter(self, state: MicrobatchState) -> None:
        if (step := self._steps.get(state.step)) is None:
            step = self._steps[state.step] = _Step(self._per_step)
        step.phases[state.phase].add(state.microbatch)
        if state.phase in READY:
            heapq.heappush(step.waiting, (state.phase is Phase.QUEUED, state.microbatch))
        if state.phase is not Phase.DONE and state.microbatch not in step.in_flight:
            step.in_flight.add(state.microbatch)
            self._flip(step.in_flight_bits, state)
            step.revision += 1
        elif state.phase is Phase.DONE:
            self._land(step, state)
            self._flip(step.ledger, state)
            step.revision += 1

    def _leave(self, state: MicrobatchState) -> None:
        step = self._steps[state.step]
        step.phases[state.phase].discard(state.microbatch)
        if state.phase is Phase.DONE:
            self._flip(step.ledger, state)
        if state.microbatch not in self._by_id:  # it is not about to come to another phase
            self._land(step, state)
            step.revision += 1

    def _land(self, step: _Step, state: MicrobatchState) -> None:
        """It is in flight no more."""
        if state.microbatch in step.in_flight:
            step.in_flight.remove(state.microbatch)
            self._flip(step.in_flight_bits, state)

    def _flip(self, bitmap: bytearray, state: MicrobatchState) -> None:
        """Say of it in a bitmap the opposite of what it said."""
        offset = state.microbatch - state.step * self._per_step
        bitmap[offset >> 3] ^= 1 << (offset & 7)
