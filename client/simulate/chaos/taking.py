"""How a volunteer gets into its stage: by asking its replicas, or from nothing at the beginning.

Follows ``client/train/taking.py``: ask to join, open a seat that observes from the version
admitted, fetch that version from a donor, load it. Whatever goes wrong on the way, it starts over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from client.simulate.agenda import Range
from client.simulate.chaos.volunteer import Volunteer
from protocol.ids import PeerId
from protocol.wire.messages import Admit, JoinStage

if TYPE_CHECKING:
    from client.simulate.chaos.world import ChaosWorld

JOIN_RETRY_S: Final = 1.0
START_S: Range = (0.05, 0.5)
DOWNLOAD_S: Range = (0.05, 1.0)
DOWNLOAD_TRIES: Final = 4


class Takings:
    """See the module's docstring."""

    def __init__(self, world: ChaosWorld) -> None:
        self._world = world

    def start(self, volunteer: Volunteer) -> None:
        """Begin to take the stage a little later, when the worker has started."""
        again = partial(self._ask, volunteer, volunteer.epoch)
        self._world.agenda.sometime(START_S, again)

    def _later(self, volunteer: Volunteer, delay_s: float, action: Callable[[], None]) -> None:
        self._world.agenda.after(delay_s, partial(volunteer.take_in, action))

    def _ask(self, volunteer: Volunteer, epoch: int) -> None:
        """Ask every replica until somebody admits us, or begin where the lineage begins."""
        if volunteer.epoch != epoch or volunteer.seat is not None or not volunteer.alive:
            return
        self._later(volunteer, JOIN_RETRY_S, partial(self._ask, volunteer, epoch))
        history = volunteer.restore
        begin, view = history.lineage.version, volunteer.believes(self._world.config.stages)
        others = [r for r in view.serving(volunteer.stage) if r.peer != volunteer.peer]
        begun = any(view.committed(s) > begin for s in range(len(view.stages)))
        may_begin = history.may_begin(volunteer.stage, self._world.now_of(volunteer))
        if history.open and any(replica.version > begin for replica in others):
            for replica in others:
                self._world.send(volunteer, replica.peer, JoinStage(volunteer.stage))
        elif may_begin and (others or not begun):
            self._begin(volunteer)

    def _begin(self, volunteer: Volunteer) -> None:
        """Stand where the lineage begins, if somebody within reach has that version."""
        lineage = volunteer.restore.lineage
        if not lineage.version:
            self._world.open_seat(volunteer, 0, serving=True)
            return
        key = (volunteer.stage, lineage.version)
        for peer in self._world.histories.donors(volunteer):
            donor = self._world.volunteers[peer]
            if donor is volunteer or self._can_give(volunteer, donor):
                saved = donor.disk.checkpoints.get(key)
                if saved is not None and saved.encode() == lineage.hashes[volunteer.stage]:
                    self._world.open_seat(volunteer, lineage.version, serving=True, saved=saved)
                    return

    def _can_give(self, volunteer: Volunteer, donor: Volunteer) -> bool:
        linked = donor.peer in volunteer.links and donor.running
        return linked and self._world.network.reaches(volunteer.peer, donor.peer)

    def admitted(self, volunteer: Volunteer, admit: Admit) -> None:
        """A leader lets us in at its version."""
        view = volunteer.believes(self._world.config.stages)
        ours = admit.era == volunteer.restore.lineage.era and volunteer.seat is None
        if not ours or admit.version < view.committed(volunteer.stage) - 1:
            return
        self._world.open_seat(volunteer, admit.version, serving=False, admit=admit)
        fetch = partial(self._fetch, volunteer, admit, volunteer.epoch, DOWNLOAD_TRIES)
        self._world.agenda.sometime(DOWNLOAD_S, partial(volunteer.take_in, fetch))

    def _fetch(self, volunteer: Volunteer, admit: Admit, epoch: int, tries: int) -> None:
        """The download from a donor has ended, if one could be had."""
        if volunteer.epoch != epoch or volunteer.seat is None or not volunteer.alive:
            return
        saved = self._from_donor(volunteer, admit)
        if saved is not None:
            self._world.load(volunteer, admit.version, saved)
        elif tries:
            again = partial(self._fetch, volunteer, admit, epoch, tries - 1)
            self._later(volunteer, JOIN_RETRY_S, again)
        else:
            self._world.retake(volunteer, "no donor is left")

    def _from_donor(self, volunteer: Volunteer, admit: Admit) -> str | None:
        for name in admit.donors:
            donor = self._world.volunteers.get(PeerId(name))
            if donor is None or not self._can_give(volunteer, donor):
                continue
            if (saved := donor.snapshots.get(admit.version)) is not None:
                return saved
        return None
