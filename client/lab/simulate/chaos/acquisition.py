"""Acquires a volunteer's stage: from its replicas, or from nothing at the beginning.

Drives ``protocol.held_stage`` as ``client/train/stage/stage_acquisition.py`` does: ask to join,
open a seat that observes from the version admitted, fetch that version from a donor, load it. After
any failure it starts over.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from client.lab.simulate.agenda import Range
from client.lab.simulate.chaos.history import Histories
from client.lab.simulate.chaos.swarm import ChaosSwarm
from client.lab.simulate.chaos.volunteer import Volunteer
from protocol.held_stage.acquisition import Begin, Join, admission, way_in
from protocol.held_stage.machine import State
from protocol.ids import PeerId
from protocol.recovery.stored import Lineage
from protocol.wire.messages import Admit, JoinStage

JOIN_RETRY_S: Final = 1.0
START_S: Range = (0.05, 0.5)
DOWNLOAD_S: Range = (0.05, 1.0)
DOWNLOAD_TRIES: Final = 4


class Acquisitions:
    """See the module's docstring.

    Args:
        swarm: the volunteers.
        histories: their lineages.
    """

    def __init__(self, swarm: ChaosSwarm, histories: Histories) -> None:
        self._swarm, self._histories = swarm, histories

    def start(self, volunteer: Volunteer) -> None:
        """Begin to take the stage a little later, when the worker has started."""
        again = partial(self._ask, volunteer, volunteer.epoch)
        self._swarm.agenda.sometime(START_S, again)

    def _later(self, volunteer: Volunteer, delay_s: float, action: Callable[[], None]) -> None:
        self._swarm.agenda.after(delay_s, partial(volunteer.take_in, action))

    def _ask(self, volunteer: Volunteer, epoch: int) -> None:
        """Ask every replica until one admits us, or start from the beginning of the lineage."""
        acquiring = volunteer.held.state is State.ACQUIRING
        if volunteer.epoch != epoch or not acquiring or not volunteer.alive:
            return
        self._later(volunteer, JOIN_RETRY_S, partial(self._ask, volunteer, epoch))
        view, now = volunteer.believes(self._swarm.config.stages), self._swarm.now_of(volunteer)
        match way_in(volunteer.stage, volunteer.peer, view, volunteer.recovery, now):
            case Join(replicas):
                for replica in replicas:
                    self._swarm.send(volunteer, replica, JoinStage(volunteer.stage))
            case Begin(lineage):
                self._begin(volunteer, lineage)

    def _begin(self, volunteer: Volunteer, lineage: Lineage) -> None:
        """Load the beginning of the lineage, if a reachable volunteer has that version."""
        if not lineage.version:
            self._swarm.open_seat(volunteer, 0, serving=True)
            return
        key = (volunteer.stage, lineage.version)
        for peer in self._histories.donors(volunteer):
            donor = self._swarm.volunteers[peer]
            if donor is volunteer or self._can_give(volunteer, donor):
                saved = donor.disk.checkpoints.get(key)
                if saved == lineage.hashes[volunteer.stage].hex():
                    self._swarm.open_seat(volunteer, lineage.version, serving=True, saved=saved)
                    self._histories.begun_with(volunteer, had=True)
                    return
        self._histories.begun_with(volunteer, had=False)

    def _can_give(self, volunteer: Volunteer, donor: Volunteer) -> bool:
        linked = donor.peer in volunteer.links and donor.running
        return linked and self._swarm.network.reaches(volunteer.peer, donor.peer)

    def admitted(self, volunteer: Volunteer, sender: PeerId, told: Admit) -> None:
        """A leader admits us at its version."""
        if volunteer.held.state is not State.ACQUIRING:
            return
        view = volunteer.believes(self._swarm.config.stages)
        admit = admission(volunteer.stage, sender, told, view, volunteer.recovery)
        if admit is None:
            return
        self._swarm.open_seat(volunteer, admit.version, serving=False, admit=admit)
        fetch = partial(self._fetch, volunteer, admit, volunteer.epoch, DOWNLOAD_TRIES)
        self._swarm.agenda.sometime(DOWNLOAD_S, partial(volunteer.take_in, fetch))

    def _fetch(self, volunteer: Volunteer, admit: Admit, epoch: int, tries: int) -> None:
        """The download from a donor has ended, if there was one."""
        if volunteer.epoch != epoch or volunteer.seat is None or not volunteer.alive:
            return
        saved = self._from_donor(volunteer, admit)
        if saved is not None:
            self._swarm.load(volunteer, admit.version, saved)
        elif tries:
            again = partial(self._fetch, volunteer, admit, epoch, tries - 1)
            self._later(volunteer, JOIN_RETRY_S, again)
        else:
            self._swarm.lose(volunteer, "no donor is left")

    def _from_donor(self, volunteer: Volunteer, admit: Admit) -> str | None:
        for name in admit.donors:
            donor = self._swarm.volunteers.get(PeerId(name))
            if donor is None or not self._can_give(volunteer, donor):
                continue
            if (saved := donor.snapshots.get(admit.version)) is not None:
                return saved
        return None
