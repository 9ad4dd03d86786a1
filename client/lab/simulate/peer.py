"""A simulated volunteer: one seat, one serial worker, and its beliefs about the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from client.lab.simulate.electing import UnsplitElector
from client.lab.simulate.worker import Payloads, SimWorker
from protocol.decree.elector import Elector
from protocol.held_stage.machine import HeldStage
from protocol.ids import PeerId
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.parts import SeatStatus


@dataclass
class SimPeer:
    """State of one volunteer; the world changes it."""

    peer: PeerId
    stage: int
    alive: bool = True
    seat: Seat | None = None
    worker: SimWorker | None = None
    worker_free_at: float = 0.0
    payloads: Payloads = field(default_factory=dict)
    statuses: dict[PeerId, SeatStatus] = field(default_factory=dict)
    """The newest heartbeat of every peer it holds for alive, itself included."""
    snapshots: dict[int, str] = field(default_factory=dict)
    """Its saved states for newcomers, by version."""
    donor: PeerId | None = None
    hash: str = ""
    """Hash of its newest version; empty at version 0."""
    epoch: int = 0
    """Rises when the seat is replaced, so that outcomes of the old one are void."""
    held: HeldStage = field(init=False)
    elector: Elector = field(init=False)
    """It survives the process."""

    def __post_init__(self) -> None:
        """Assign the stage."""
        self.elector = UnsplitElector(is_gone=lambda peer: peer not in self.statuses)
        self.hold()

    def hold(self) -> None:
        """Hold the stage as a new process does, to which it has just been assigned."""
        self.held = HeldStage(self.stage, 0.0)

    @property
    def serving(self) -> bool:
        """Whether it takes part in training."""
        return self.alive and self.seat is not None and self.seat.serving

    def believes(self, stages: int) -> SwarmView:
        """The view of the swarm from its heartbeats."""
        return view_of(stages, self.statuses)


def view_of(stages: int, statuses: Mapping[PeerId, SeatStatus]) -> SwarmView:
    """Return the view that heartbeats give."""
    replicas: list[list[Replica]] = [[] for _ in range(stages)]
    for peer, said in statuses.items():
        replicas[said.stage].append(
            Replica(
                peer,
                said.version,
                said.state == "serving",
                said.rate,
                moved=said.moved,
                missing=tuple(map(PeerId, said.missing)),
                audited=tuple(map(PeerId, said.audited)),
                returned=said.returned,
            )
        )
    return SwarmView.of(replicas)
