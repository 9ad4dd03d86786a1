"""A node's typed events. One is published once and never changes. No I/O here."""

from dataclasses import asdict, dataclass
from typing import ClassVar, Final, Literal, get_args

from protocol.effects import Decision, Level, Topic

LEVELS: Final[tuple[str, ...]] = get_args(Level)


def at_least(level: str, least: str) -> bool:
    """Whether to show an event of a level; those of unknown levels are shown."""
    return level not in LEVELS or LEVELS.index(level) >= LEVELS.index(least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events: words for people, fields for programs."""

    words: str
    level: Level = "info"
    topic: ClassVar[Topic] = "swarm"

    @property
    def about_members(self) -> tuple[str, ...]:
        """The members that the words name by the ends of their ids: its ``members`` or ``peer``."""
        peer = getattr(self, "peer", None)
        return getattr(self, "members", (peer,) if peer else ())

    def data(self) -> dict[str, object]:
        """Return the fields beside words and level."""
        fields = asdict(self)
        return {name: value for name, value in fields.items() if name not in ("words", "level")}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted(Event):
    """The last stage closed a step."""

    topic: ClassVar[Topic] = "round"
    step: int
    loss: float
    """Mean over the step's tokens, nats."""
    tokens: int
    """Tokens trained on since the swarm began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionEvaluated(Event):
    """Members have told a version's loss on held-out text."""

    topic: ClassVar[Topic] = "round"
    version: int
    loss: float
    """Mean of the held-out tokens that are learned, nats; the median of what was told."""
    bits_per_byte: float
    tokens: int
    """Held-out tokens that it is the mean of."""
    vouchers: int
    """Members whose number is this one."""
    claims: int
    """Members that told a number of this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClosed(Event):
    """A seat of ours has applied a step."""

    topic: ClassVar[Topic] = "round"
    stage: int
    version: int
    """The present version."""
    hash: str
    """Hash of its parameters; the same at every replica (I2)."""
    counted: int
    """Our microbatches in it; those of all replicas add up to a whole step (I1)."""
    attempt: int
    era: int
    """Lineage of the version; rises when the swarm rolls back."""
    grad_norm: float = 0.0
    """Of the stage's mean gradient, before clipping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerChanged(Event):
    """A member joined or left."""

    topic: ClassVar[Topic] = "membership"
    peer: str
    state: Literal["up", "down"]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAssigned(Event):
    """This volunteer's place in a stage changed."""

    topic: ClassVar[Topic] = "matching"
    stage: int
    state: Literal["held", "serving", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryEvent(Event):
    """A fault was detected, or repaired."""

    topic: ClassVar[Topic] = "pipeline"
    fault: Literal["peer", "worker"]
    phase: Literal["detected", "recovered"]
    step: int | None = None
    peer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineGivenUp(Event):
    """We trained apart from others, have met them, and go on with what they have made."""

    steps: int
    """Ours that are given up."""
    version: int
    """Our last."""
    reached: int
    """Theirs then."""
    members: tuple[str, ...]
    """Those whose line of the run stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine(Event):
    """Any other event; ``about`` is its topic."""

    about: Topic = "swarm"
    members: tuple[str, ...] = ()
    """Those that the words name by the ends of their ids."""
    decision: Decision = ""
    """Of the matching, where the event tells one."""
