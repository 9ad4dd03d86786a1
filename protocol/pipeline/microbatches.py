"""The microbatches that a replica holds, by id, by step and by phase.

A step may have thousands of them, and most messages are about one. So what is asked with every
message (what is counted, what is in flight, what the worker does next) is kept up to date with each
change instead of being looked for. It decides nothing.
"""

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
    sends: dict[PeerId, tuple[int, float]] = field(default_factory=dict)
    """How often its gradient was sent to each of them, and when it may be sent again."""
    giver: PeerId | None = None
    """The sender of the tensor being computed on: the boundary, then its gradient; None at stage 0,
    which reads its own samples."""
    source: PeerId | None = None
    """The sender of the boundary; None at stage 0."""
    came: bytes = b""
    """Digests of its tokens and boundary; empty if nobody gave them to us."""
    came_back: bytes = b""
    """Digest of its gradient."""
    again: bool = False
    loss_sum: float = 0.0


READY = (Phase.RETURNED, Phase.QUEUED)
"""Phases in which a microbatch waits for the worker, in order of priority."""


class StepWork:
    """The microbatches of one step. What is returned changes as the step goes on."""

    def __init__(self, per_step: int) -> None:
        self.phases: dict[Phase, set[int]] = {phase: set() for phase in Phase}
        self.ledger = bytearray((per_step + 7) // 8)
        """Bitmap of the counted microbatches, as it is reported."""
        self.in_flight: set[int] = set()
        """Those that are held and not counted."""
        self.in_flight_bits = bytearray((per_step + 7) // 8)
        self.revision = 0
        """Rises when what is counted or in flight changes."""
        self._waiting: list[tuple[bool, int]] = []
        """A heap of all that have waited; what does no more is dropped when it comes to the top."""

    @property
    def done(self) -> Set[int]:
        """Those that are counted."""
        return self.phases[Phase.DONE]

    def count(self, *phases: Phase) -> int:
        """Return how many are in one of these phases."""
        return sum(len(self.phases[phase]) for phase in phases)

    def first_waiting(self) -> int | None:
        """Return what the worker does next: gradients first, then the oldest."""
        while self._waiting:
            queued, microbatch = self._waiting[0]
            if microbatch in self.phases[READY[queued]]:
                return microbatch
            heapq.heappop(self._waiting)
        return None

    def enter(self, phase: Phase, microbatch: int, offset: int) -> None:
        """A microbatch, the ``offset``-th of the step, has come to a phase."""
        self.phases[phase].add(microbatch)
        if phase in READY:
            heapq.heappush(self._waiting, (phase is Phase.QUEUED, microbatch))
        if phase is Phase.DONE:
            self._land(microbatch, offset)
            _flip(self.ledger, offset)
            self.revision += 1
        elif microbatch not in self.in_flight:
            self.in_flight.add(microbatch)
            _flip(self.in_flight_bits, offset)
            self.revision += 1

    def leave(self, phase: Phase, microbatch: int, offset: int, *, held: bool) -> None:
        """It leaves a phase; ``held``: for another one."""
        self.phases[phase].discard(microbatch)
        if phase is Phase.DONE:
            _flip(self.ledger, offset)
        if not held:
            self._land(microbatch, offset)
            self.revision += 1

    def _land(self, microbatch: int, offset: int) -> None:
        """It is in flight no more."""
        if microbatch in self.in_flight:
            self.in_flight.remove(microbatch)
            _flip(self.in_flight_bits, offset)


def _flip(bitmap: bytearray, offset: int) -> None:
    """Say of a microbatch in a bitmap the opposite of what it said."""
    bitmap[offset >> 3] ^= 1 << (offset & 7)


class Microbatches:
    """See the module's docstring.

    Args:
        per_step: microbatches of a step.
    """

    def __init__(self, per_step: int) -> None:
        self._per_step = per_step
        self._by_id: dict[int, MicrobatchState] = {}
        self._steps: dict[int, StepWork] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[MicrobatchState]:
        return iter(list(self._by_id.values()))

    def get(self, microbatch: int) -> MicrobatchState | None:
        """Return a microbatch, None if we do not hold it."""
        return self._by_id.get(microbatch)

    def at(self, step: int) -> StepWork:
        """Return the sums of a step: empty ones if nothing of it is held."""
        return self._steps.get(step) or StepWork(self._per_step)

    def of(self, step: int) -> list[MicrobatchState]:
        """Return those of one step."""
        return [self._by_id[m] for some in self.at(step).phases.values() for m in some]

    def steps(self) -> list[int]:
        """Return the steps of which we hold or have held something, oldest first."""
        return sorted(self._steps)

    def add(self, state: MicrobatchState) -> None:
        """Hold a microbatch; one that is held already stays as it is."""
        if state.microbatch not in self._by_id:
            self._by_id[state.microbatch] = state
            step = self._steps.setdefault(state.step, self.at(state.step))
            step.enter(state.phase, state.microbatch, self._offset(state))

    def move(self, state: MicrobatchState, phase: Phase) -> None:
        """A microbatch that we hold has come to another phase."""
        step, offset = self._steps[state.step], self._offset(state)
        step.leave(state.phase, state.microbatch, offset, held=True)
        state.phase = phase
        step.enter(phase, state.microbatch, offset)

    def pop(self, microbatch: int) -> MicrobatchState | None:
        """Hold a microbatch no longer."""
        state = self._by_id.pop(microbatch, None)
        if state is not None:
            step = self._steps[state.step]
            step.leave(state.phase, microbatch, self._offset(state), held=False)
        return state

    def forget(self, step: int) -> None:
        """Hold nothing of a step."""
        for state in self.of(step):
            del self._by_id[state.microbatch]
        self._steps.pop(step, None)

    def _offset(self, state: MicrobatchState) -> int:
        return state.microbatch - state.step * self._per_step
