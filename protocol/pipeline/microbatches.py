"""The microbatches that a replica holds, by id, by step and by phase.

A step may have thousands of them, and most messages are about one. So what is asked with every
message (what is counted, what is in flight, what the worker does next) is kept up to date with each
change instead of being looked for. It decides nothing.
"""

import enum
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
    upstreams: set[PeerId] = field(default_factory=set)
    """Return addresses of the gradient: none at stage 0, more than one while two replicas work on
    it."""
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
        self.in_flight: set[int] = set()
        """Those that are held and not counted."""
        self.ledger = bytearray((per_step + 7) // 8)
        """Bitmap of the counted ones, as it is reported: after each of them, where none is in
        flight."""
        self._per_step = per_step
        self.revision = 0
        """Rises when what is counted or in flight changes."""

    @property
    def done(self) -> Set[int]:
        """Those that are counted."""
        return self.phases[Phase.DONE]

    def count(self, *phases: Phase) -> int:
        """Return how many are in one of these phases."""
        return sum(len(self.phases[phase]) for phase in phases)

    def first_waiting(self) -> int | None:
        """Return what the worker does next: gradients first, then the oldest."""
        waiting = next(filter(None, (self.phases[phase] for phase in READY)), None)
        return min(waiting) if waiting else None

    def put(self, microbatch: int, before: Phase | None, after: Phase | None) -> None:
        """Move a microbatch from one phase to another; None: it is not held."""
        if before is not None:
            self.phases[before].discard(microbatch)
        if after is not None:
            self.phases[after].add(microbatch)
        if (before is Phase.DONE) is not (after is Phase.DONE):
            offset = microbatch % self._per_step
            self.ledger[offset >> 3] ^= 1 << (offset & 7)
        flew, flies = (phase not in (None, Phase.DONE) for phase in (before, after))
        if not (flew and flies):
            (self.in_flight.add if flies else self.in_flight.discard)(microbatch)
            self.revision += 1


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
            step.put(state.microbatch, None, state.phase)

    def move(self, state: MicrobatchState, phase: Phase) -> None:
        """A microbatch that we hold has come to another phase."""
        self._steps[state.step].put(state.microbatch, state.phase, phase)
        state.phase = phase

    def pop(self, microbatch: int) -> MicrobatchState | None:
        """Hold a microbatch no longer."""
        state = self._by_id.pop(microbatch, None)
        if state is not None:
            self._steps[state.step].put(microbatch, state.phase, None)
        return state

    def forget(self, step: int) -> None:
        """Hold nothing of a step."""
        for state in self.of(step):
            del self._by_id[state.microbatch]
        self._steps.pop(step, None)
