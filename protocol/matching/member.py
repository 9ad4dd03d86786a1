"""A member as the matching sees it: its claims, corrected by partners, and its stages."""

from dataclasses import dataclass

from protocol.ids import PeerId, Stage


@dataclass(frozen=True, slots=True)
class Member:
    """A live member with its capacity claims (its advert, corrected by partners' measurements)."""

    peer: PeerId
    joined_at: float
    """Unix seconds."""
    flops: float
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    memory_bytes: float
    held: frozenset[Stage] = frozenset()
    """Stages it serves or fetches."""
    measured_s: float = 0.0
    """Seconds of partners' measurements; before 5 minutes claims are capped at 2 x median."""
    ineligible: frozenset[Stage] = frozenset()
    """Stages it says it cannot serve."""
    seats: int = 2
    """Stages that it is willing to hold; its memory also limits them."""
    home: Stage | None = None
    """The stage of its first seat; may be None for a member with only one stage."""
    second: Stage | None = None
    """The stage of its second seat, adjacent to its home."""
    fetching: frozenset[Stage] = frozenset()
    """Stages of ``held`` that it does not serve yet."""
    may_decide: bool = True
    """Whether it may be a steward; False if the peers near it have lost it."""
    certified: bool = False
    """Whether the newest waypoint names it: its stage's replicas had planned a step with it."""
    marks: frozenset[str] = frozenset()
    """What relates it to others (``relatives.py``); empty: nothing is known."""

    @property
    def home_stage(self) -> Stage | None:
        """The stage that its first seat serves or fetches."""
        if self.home is not None or len(self.held) != 1:
            return self.home
        return next(iter(self.held))

    @property
    def serving(self) -> frozenset[Stage]:
        """Stages it serves."""
        return self.held - self.fetching

    @property
    def claim(self) -> tuple[float, float, float]:
        """Its claimed speed: FLOP/s, uplink and downlink bytes/s."""
        return self.flops, self.uplink_bytes_per_s, self.downlink_bytes_per_s
