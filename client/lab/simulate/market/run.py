"""One run: nature happens, the volunteers act, the throughput is observed.

Time passes in an ``Agenda``; the throughput is observed at regular moments, so a run costs the same
however many events fall between two of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from client.lab.simulate.agenda import Agenda
from client.lab.simulate.market.crowd import Crowd, Said
from client.lab.simulate.market.fleet import Effort, Fleet
from client.lab.simulate.market.nature import Flags, Floats, Nature
from client.lab.simulate.market.setting import DETECTION_S

RESOLUTION_S = 2.0
Progress = Callable[[float], object]
"""Called with the share of the time that has passed."""


@dataclass(frozen=True, eq=False)
class Record:
    """The observations at T moments."""

    times_s: Floats  # (T,)
    throughput: Floats  # (T,), micro-microbatches per second
    empty: Flags  # (T,), whether a stage was not served
    losses_s: Floats  # when serving volunteers were lost
    effort: Effort
    said: Said


def play(nature: Nature, progress: Progress) -> Record:
    """Run the matching in a world to the end of its time."""
    stage = _Stage(nature)
    times = np.arange(RESOLUTION_S, nature.horizon_s + RESOLUTION_S / 2, RESOLUTION_S)
    throughput, empty = np.zeros(len(times)), np.zeros(len(times), dtype=bool)
    level, bare = 0.0, True
    for index, at_s in enumerate(times.tolist()):
        stage.advance(at_s)
        if stage.fleet.changed:
            stage.fleet.changed = False
            level = stage.fleet.capacity.throughput()
            bare = min(stage.fleet.capacity.replicas) == 0
        throughput[index], empty[index] = level, bare
        if index % 50 == 0:
            progress(at_s / nature.horizon_s)
    return Record(
        times_s=times,
        throughput=throughput,
        empty=empty,
        losses_s=np.array(sorted(stage.losses_s)),
        effort=stage.fleet.effort,
        said=stage.crowd.said,
    )


class _Stage:
    """The state of a run: the clock and the volunteers."""

    def __init__(self, nature: Nature) -> None:
        self._agenda = Agenda(nature.setting.seed)
        self.fleet = Fleet(nature, self._agenda, lambda v, s: self.crowd.loaded(v, s))
        self.losses_s: list[float] = []
        for volunteer in range(nature.count):
            self._schedule(nature, volunteer)
        self.crowd = Crowd(nature, self._agenda, self.fleet)

    def advance(self, until_s: float) -> None:
        """Run the events before a moment."""
        while self._agenda.advance(until_s):
            pass

    def _schedule(self, nature: Nature, volunteer: int) -> None:
        joins, leaves = float(nature.joins_s[volunteer]), float(nature.leaves_s[volunteer])
        self._agenda.at(joins, lambda: self._join(volunteer))
        if leaves < nature.horizon_s:
            crash = bool(nature.crashes[volunteer])
            self._agenda.at(leaves, lambda: self._depart(volunteer, crash))

    def _join(self, volunteer: int) -> None:
        self.fleet.enter(volunteer)
        self.crowd.joined(volunteer)

    def _depart(self, volunteer: int, crash: bool) -> None:
        if self.fleet.serving(volunteer):
            self.losses_s.append(self._agenda.now)
        self.fleet.vanish(volunteer)
        self._agenda.after(DETECTION_S if crash else 0.0, lambda: self.crowd.departed(volunteer))
