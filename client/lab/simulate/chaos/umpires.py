"""Umpires in the chaos world: volunteers that open the version of a stage beside their own.

It does for a simulated seat what ``client/train/stage/umpire_driver.py`` does. State: what each
volunteer has opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from client.lab.simulate.agenda import Range
from client.lab.simulate.chaos.swarm import ChaosSwarm
from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.multisets import MultisetWorker
from client.lab.simulate.seats import Parts
from client.lab.simulate.worker import Payloads
from protocol.ids import PeerId
from protocol.pipeline.effects import KeepVersionTask, Outcome, RecomputeTask, WeighTask
from protocol.pipeline.place import Place
from protocol.rounds.reports import state_digest
from protocol.seat.effects import CaseEffect, CloseCase, JudgeTask, KeepShown, OpenCase

OPEN_S: Range = (0.2, 3.0)
TASK_S: Range = (0.01, 0.06)
TRIES: Final = 3
NO_MEMORY: Final = 0.1
"""Share of the cases for which a volunteer has no memory."""


@dataclass(slots=True)
class _Opened:
    worker: MultisetWorker
    payloads: Payloads = field(default_factory=dict)


class Umpires:
    """See the module's docstring."""

    def __init__(self, swarm: ChaosSwarm) -> None:
        self._swarm = swarm
        self._opened: dict[tuple[PeerId, int], _Opened] = {}
        """By volunteer and the epoch of its seat."""

    def perform(self, peer: Volunteer, effect: CaseEffect, parts: Parts) -> None:
        """Perform an effect of a seat that is an umpire."""
        key = peer.peer, peer.epoch
        match effect:
            case OpenCase():
                fetch = partial(self._fetch, peer, effect, peer.epoch, TRIES)
                self._swarm.agenda.sometime(OPEN_S, partial(peer.take_in, fetch))
            case KeepShown(shown) if key in self._opened:
                self._opened[key].payloads[shown] = parts[0]
            case JudgeTask(task):
                run = partial(self._run, peer, task, peer.epoch)
                self._swarm.agenda.sometime(TASK_S, partial(peer.take_in, run))
            case CloseCase():
                self._opened.pop(key, None)
            case _:
                pass

    def _fetch(self, peer: Volunteer, case: OpenCase, epoch: int, tries: int) -> None:
        if peer.epoch != epoch or peer.seat is None or not peer.alive:
            return
        donor = self._swarm.volunteers.get(case.donor)
        linked = case.donor in peer.links and donor is not None and donor.running
        saved = donor.snapshots.get(case.version) if donor is not None and linked else None
        error = ""
        if self._swarm.random.random() < NO_MEMORY:
            error = "no memory"
        elif saved is None and tries:
            again = partial(self._fetch, peer, case, epoch, tries - 1)
            self._swarm.agenda.sometime(OPEN_S, partial(peer.take_in, again))
            return
        elif saved is None or state_digest(saved) != case.state:
            error = "nobody has that version"
        else:
            self._open(peer, case, saved)
        effects = peer.seat.case_opened(error, self._swarm.now_of(peer))
        self._swarm.perform(peer, effects)

    def _open(self, peer: Volunteer, case: OpenCase, saved: str) -> None:
        config = self._swarm.config
        place = Place(peer.peer, case.stage, config.stages, config.per_step)
        worker = MultisetWorker(place, delayed=config.delayed)
        worker.load(case.version, saved)
        worker.run(KeepVersionTask(case.version), {})
        self._opened[peer.peer, peer.epoch] = _Opened(worker)

    def _run(self, peer: Volunteer, task: RecomputeTask | WeighTask, epoch: int) -> None:
        opened = self._opened.get((peer.peer, epoch))
        if opened is None or peer.epoch != epoch or peer.seat is None:
            return
        try:
            outcome = opened.worker.run(task, opened.payloads)
        except KeyError:
            outcome = Outcome(error="gone")
        effects = peer.seat.case_computed(task, outcome, self._swarm.now_of(peer))
        self._swarm.perform(peer, effects)
