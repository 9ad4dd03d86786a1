"""One stage that a volunteer holds, from its assignment until its memory is free again. Pure.

    acquiring -> observing -> serving -> draining -> saving -> gone

Each input says what it leads to in every state, and returns what the driver then does. The machine
knows nothing of processes, files or other stages. *Draining* is the one way to leave: the
seat brings what it has counted into its step (``protocol/seat``); then its state is saved, if the
volunteer leaves the swarm. A seat or worker that is lost is acquired again, unless the stage
drains.
"""

import enum
from typing import Final

from protocol.pace import ASIDE_S, SAVE_S

DRAIN_S: Final = ASIDE_S
"""How long a seat may take to bring what it has counted into its step's round."""


class State(enum.Enum):
    """Where a held stage stands."""

    ACQUIRING = "acquiring"
    """It has no seat: its data, worker or state are still to be had (``Phase``)."""
    OBSERVING = "observing"
    """Its seat was admitted and follows the rounds; the state of its version is on the way."""
    SERVING = "serving"
    DRAINING = "draining"
    """Its seat takes nothing new and closes the step it has counted for."""
    SAVING = "saving"
    """No peer needs its seat any more; the last checkpoint is written and copied."""
    GONE = "gone"
    """Its worker and memory are being given back, or have been."""


class Do(enum.Enum):
    """An action of the driver on a transition."""

    RETAKE = "close the seat and acquire the stage anew"
    ANNOUNCE = "tell the matching that the stage is served"
    DRAIN = "let the seat take nothing new"
    KEEP = "let the seat go on after all"
    SAVE = "write the last checkpoint"
    RELEASE = "close the seat, give worker and memory back"
    REPORT = "close the seat and say why the stage cannot be held"


class Phase(enum.Enum):
    """The phases of acquiring a stage, in order, as words with ``{stage}`` in them. An attempt that
    fails begins again with its data."""

    MEMORY = "making room for stage {stage}"
    WORKER = "starting a compute worker for stage {stage}"
    DATA = "looking for the training data"
    DATA_DONORS = "asking who has the training data"
    DATA_DOWNLOAD = "downloading the tokenizer of the training data"
    OPENING = "opening stage {stage}"
    HISTORY = "finding out where the run stands"
    ADMISSION = "asking to join stage {stage}"
    DOWNLOAD = "downloading the state of stage {stage}"
    LOADING = "loading stage {stage}"
    RETRY = "waiting a moment before stage {stage} is acquired anew"


class HeldStage:
    """See the module's docstring. ``now`` is monotonic seconds.

    Args:
        stage: its number.
        now: monotonic seconds.
    """

    def __init__(self, stage: int, now: float) -> None:
        self.stage, self.state, self.since = stage, State.ACQUIRING, now
        """``since``: when the state began, or in a state of several phases the present one."""
        self._phase, self._words = Phase.MEMORY, ""
        self._begins_anew = False
        self.again = False
        """Whether it is to be acquired again once it is gone."""
        self.leaves = False
        """Whether its volunteer leaves the swarm, or pauses: its state is wanted on disk."""
        self._keeps = False

    # --- queries ---------------------------------------------------------------------------

    @property
    def drains(self) -> bool:
        """Whether it drains or has drained."""
        return self.state in (State.DRAINING, State.SAVING, State.GONE)

    @property
    def keeps(self) -> bool:
        """Whether it stays in memory because its last checkpoint cannot be written."""
        return self._keeps and self.state is State.SAVING

    @property
    def returning(self) -> bool:
        """Whether it is between two lineages: the seat is closed, the stage is ours as it was."""
        return self._begins_anew and self.state is State.ACQUIRING

    @property
    def waits_for(self) -> str:
        """Say what it waits for; empty: for nothing, it serves."""
        match self.state:
            case State.ACQUIRING | State.OBSERVING:
                return self._words or self._phase.value.format(stage=self.stage)
            case State.DRAINING:
                return f"draining stage {self.stage}: its running step is brought to its end"
            case State.SAVING:
                return f"saving stage {self.stage}: {self._words or 'writing a last checkpoint'}"
            case State.GONE:
                return f"releasing the memory of stage {self.stage}"
            case _:
                return ""

    # --- getting it ------------------------------------------------------------------------

    def assign(self, now: float) -> tuple[Do, ...]:
        """The matching gives us the stage again, perhaps while it is leaving."""
        self.again = self.state in (State.SAVING, State.GONE)
        if self.state is State.DRAINING:
            return self._enter(State.SERVING, now, Do.KEEP, Do.ANNOUNCE)
        return ()

    def waits(self, phase: Phase, now: float, words: str = "") -> None:
        """The way to its state has reached a phase.

        Args:
            phase: the phase reached.
            now: monotonic seconds.
            words: what it waits for where the phase alone does not say it.
        """
        if phase is not self._phase and self.state in (State.ACQUIRING, State.OBSERVING):
            self.since = now
        self._phase, self._words = phase, words

    def opened(self, now: float, *, serving: bool) -> tuple[Do, ...]:
        """A seat is open; without ``serving`` the state of its version is still to come."""
        self._begins_anew = False
        return self.serves(now) if serving else self._enter(State.OBSERVING, now)

    def serves(self, now: float) -> tuple[Do, ...]:
        """The open seat takes part in training."""
        if self.state in (State.ACQUIRING, State.OBSERVING):
            return self._enter(State.SERVING, now, Do.ANNOUNCE)
        return ()

    def begin_anew(self, now: float) -> tuple[Do, ...]:
        """The swarm begins a new lineage: its state is acquired from that beginning."""
        self._begins_anew |= self.state not in (State.ACQUIRING, State.GONE)
        return self.lose(now)

    # --- leaving ---------------------------------------------------------------------------

    def lose(self, now: float) -> tuple[Do, ...]:
        """The attempt, the seat or its worker is lost: the stage is acquired again, unless it
        drains."""
        if self.drains:
            return self.release(now)
        return self._enter(State.ACQUIRING, now, Do.RETAKE)

    def fail(self, now: float) -> tuple[Do, ...]:
        """The stage cannot be held at all."""
        return () if self.state is State.GONE else self._enter(State.GONE, now, Do.REPORT)

    def drain(self, now: float) -> tuple[Do, ...]:
        """The stage is to be given up."""
        self.again = False
        if self.state is State.SERVING:
            return self._enter(State.DRAINING, now, Do.DRAIN)
        return () if self.drains else self.release(now)

    def look(self, now: float, *, drained: bool) -> tuple[Do, ...]:
        """Act on time and on what the seat has reached.

        Args:
            now: monotonic seconds.
            drained: no peer needs the seat any more, and all know that it drains.
        """
        for_s = now - self.since
        if self.state is State.DRAINING and (drained or for_s >= DRAIN_S):
            return self._drained(now)
        saving = self.state is State.SAVING and not self._keeps
        return self.release(now) if saving and for_s >= SAVE_S else ()

    def stand_still(self, now: float) -> tuple[Do, ...]:
        """A stage of the swarm is empty: no step closes, so that none is waited for."""
        return self._drained(now) if self.state is State.DRAINING and self.leaves else ()

    def release(self, now: float) -> tuple[Do, ...]:
        """Nothing of it is needed any more: its last checkpoint is on disk, if one was wanted."""
        return () if self.state is State.GONE else self._enter(State.GONE, now, Do.RELEASE)

    def cannot_save(self, words: str) -> None:
        """Nobody else has its state, and the last checkpoint cannot be written: it stays in memory
        until it can, or ``let_go``."""
        self._words, self._keeps = words, True

    def let_go(self) -> None:
        """Its state may be lost: it is saved in time or not at all."""
        self._keeps = False

    def copies(self) -> None:
        """Its last checkpoint is on disk; a neighbour keeps a copy before it goes."""
        self._words = "waiting until a neighbour keeps a copy"

    # --- inside ----------------------------------------------------------------------------

    def _drained(self, now: float) -> tuple[Do, ...]:
        return self._enter(State.SAVING, now, Do.SAVE) if self.leaves else self.release(now)

    def _enter(self, state: State, now: float, *effects: Do) -> tuple[Do, ...]:
        if state is not self.state:
            self.state, self.since, self._words = state, now, ""
        return effects
