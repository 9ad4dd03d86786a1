"""The base of the chaos world, on which its parts work: the volunteers, their network, the checks.

``Beats``, ``Faults``, ``Acquisitions`` and ``Histories`` hold a swarm and act on its volunteers.
The whole world (``world``), which consists of those parts, implements these actions.
"""

from abc import abstractmethod

from client.lab.simulate.chaos.checks import Checks
from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.liar import BEATS, Liar, Lie
from client.lab.simulate.chaos.links import Network
from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.seats import SeatWorld
from protocol.ids import PeerId
from protocol.recovery.stored import Stored
from protocol.wire.messages import Admit
from protocol.wire.parts import SeatStatus
from protocol.wire.statement import Statement


class ChaosSwarm(SeatWorld[Volunteer]):
    """See the module's docstring.

    Args:
        config: the swarm and its permitted faults.
    """

    def __init__(self, config: ChaosConfig) -> None:
        super().__init__(config.seed, config.compute_s)
        self.config = config
        self.volunteers: dict[PeerId, Volunteer] = {}
        self.network = Network(self.agenda, self.volunteers)
        self.checks = Checks(config.per_step, parting=config.parting)
        self.liar = Liar(config.seed, config.stages, config.lies)
        self._met = False

    def now_of(self, peer: Volunteer) -> float:
        """See ``SeatWorld``."""
        return peer.clock.read(self.agenda.now)

    def present(self) -> list[Volunteer]:
        """Return the volunteers that have not left for good."""
        return [v for v in self.volunteers.values() if not v.retired]

    def honest(self) -> list[Volunteer]:
        """Return the honest volunteers, also those that have left."""
        return [v for v in self.volunteers.values() if not v.lies]

    # --- processes -------------------------------------------------------------------------

    @abstractmethod
    def start(self, volunteer: Volunteer) -> None:
        """Start a process, which knows only its disk."""

    @abstractmethod
    def replace(self, gone: Volunteer) -> None:
        """Replace a volunteer that never comes back."""

    @abstractmethod
    def crash(self, volunteer: Volunteer, *, wipe: bool) -> None:
        """End the process: its connections are closed, its memory is lost."""

    def pause(self, volunteer: Volunteer) -> None:
        """Give the process no more processor time."""
        self.note(volunteer, "is paused")
        volunteer.paused = True

    @abstractmethod
    def wake(self, volunteer: Volunteer, incarnation: int) -> None:
        """Continue the process, if it still has this number."""

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
        """Load a state that has arrived."""

    @abstractmethod
    def lose(self, volunteer: Volunteer, why: str) -> None:
        """Lose the seat, or the attempt to get one."""

    @abstractmethod
    def begin_anew(self, volunteer: Volunteer) -> None:
        """Open the seat again at the beginning of another lineage."""

    # --- what is said --------------------------------------------------------------------------

    def states(self, volunteer: Volunteer, kind: str, said: Statement) -> bool:
        """Whether a volunteer signs a statement: an honest one says nothing twice in two ways."""
        if volunteer.lies:
            return True
        if not volunteer.word.may_say(kind, said):
            self.note(volunteer, f"does not sign another {kind} of step {said.step}")
            return False
        self.checks.stated(volunteer, kind, said)
        return True

    def lies_now(self, volunteer: Volunteer, kind: Lie) -> bool:
        """Whether it lies now: not before all present volunteers have closed a step, because nobody
        is trusted until then (protocol/SPEC.md, section 20)."""
        if not volunteer.lies:
            return False
        self._met = self._met or all(v.lies or v.disk.evidence.stages for v in self.present())
        return self._met and self.liar.lies(kind, self.agenda.now)

    def records_told(self, volunteer: Volunteer) -> dict[PeerId, tuple[int, Stored]]:
        """Return a volunteer's records of all disks."""
        if self.lies_now(volunteer, "records"):
            return self.liar.records(volunteer.peer, volunteer.records)
        if self.lies_now(volunteer, "restarts"):
            return self.liar.restart(volunteer.peer, volunteer.records)
        return dict(volunteer.records)

    def beat_told(self, volunteer: Volunteer, said: SeatStatus | None) -> SeatStatus | None:
        """Return what a volunteer tells another one of its seat."""
        for kind in BEATS if volunteer.lies else ():
            if self.lies_now(volunteer, kind):
                said = self.liar.beat(kind, said, list(self.volunteers))
        return said

    # --- what its links do ---------------------------------------------------------------------

    @abstractmethod
    def linked(self, volunteer: Volunteer, to: PeerId) -> None:
        """A volunteer has a new link."""

    @abstractmethod
    def show(self, volunteer: Volunteer) -> None:
        """Give a volunteer's machines what it sees now."""
