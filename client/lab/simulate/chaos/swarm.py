"""What the parts of the chaos world work on: the volunteers, the network between them, the checks.

``Faults``, ``Acquisitions`` and ``Histories`` hold a swarm and let things happen to its volunteers.
How these happen is said by the whole world (``world``), which is made of those parts.
"""

from __future__ import annotations

from abc import abstractmethod

from client.lab.simulate.chaos.checks import Checks
from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.links import Network
from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.seats import SeatWorld
from protocol.ids import PeerId
from protocol.wire.messages import Admit


class ChaosSwarm(SeatWorld[Volunteer]):
    """See the module's docstring.

    Args:
        config: the swarm and what may go wrong.
    """

    def __init__(self, config: ChaosConfig) -> None:
        super().__init__(config.seed, config.compute_s)
        self.config = config
        self.volunteers: dict[PeerId, Volunteer] = {}
        self.network = Network(self.agenda, self.volunteers, config.delay_s)
        self.checks = Checks(config.per_step)

    def now_of(self, peer: Volunteer) -> float:
        """See ``SeatWorld``."""
        return peer.clock.read(self.agenda.now)

    def present(self) -> list[Volunteer]:
        """Return everybody who has not gone for good."""
        return [v for v in self.volunteers.values() if not v.retired]

    def honest(self) -> list[Volunteer]:
        """Return all who say what is true, also those who have gone."""
        return [v for v in self.volunteers.values() if not v.lies]

    # --- processes -------------------------------------------------------------------------

    @abstractmethod
    def start(self, volunteer: Volunteer) -> None:
        """A process starts; it knows nothing but its disk."""

    @abstractmethod
    def replace(self, gone: Volunteer) -> None:
        """Somebody else takes the place of a volunteer that never comes back."""

    @abstractmethod
    def crash(self, volunteer: Volunteer, *, wipe: bool) -> None:
        """The process ends: its connections are closed, in memory nothing is left."""

    @abstractmethod
    def pause(self, volunteer: Volunteer) -> None:
        """The process gets no time any more."""

    @abstractmethod
    def wake(self, volunteer: Volunteer, incarnation: int) -> None:
        """It gets time again, if it is still the process with this number."""

    # --- seats -----------------------------------------------------------------------------

    @abstractmethod
    def open_seat(
        self,
        volunteer: Volunteer,
        version: int,
        *,
        serving: bool,
        admit: Admit | None = None,
        saved: str = "",
    ) -> None:
        """Open a seat at a version, or to observe from it; ``saved``: the state of that version."""

    @abstractmethod
    def load(self, volunteer: Volunteer, version: int, saved: str) -> None:
        """A state has arrived and is loaded."""

    @abstractmethod
    def lose(self, volunteer: Volunteer, why: str) -> None:
        """The way into the stage or its seat is lost."""

    @abstractmethod
    def begin_anew(self, volunteer: Volunteer) -> None:
        """Another lineage begins: the seat is opened again where it begins."""

    @abstractmethod
    def records_told(self, volunteer: Volunteer) -> dict[PeerId, tuple[int, bytes]]:
        """Return what a volunteer says of everybody's disk."""
