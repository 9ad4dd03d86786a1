"""One run: nature happens, a policy acts, the throughput is observed.

Time passes in an ``Agenda``; the throughput is observed at regular moments, so a run costs the same
however many events fall between two of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from client.lab.simulate.agenda import Agenda
from client.lab.simulate.market.fleet import Effort, Fleet
from client.lab.simulate.market.nature import Flags, Floats, Nature
from client.lab.simulate.market.policies.policy import MakePolicy, Market, Said
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
    said: Said | None = None


def play(nature: Nature, policy: MakePolicy, progress: Progress | None = None) -> Record:
    """Run a policy in a world to the end of its time."""
    stage = _Stage(nature, policy)
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
        if progress and index % 50 == 0:
            progress(at_s / nature.horizon_s)
    return Record(
        times_s=times,
        throughput=throughput,
        empty=empty,
        losses_s=np.array(sorted(stage.losses_s)),
        effort=stage.fleet.effort,
        said=stage.said,
    )


class _Stage:
    """The state of a run: the clock, the volunteers and the policy."""

    def __init__(self, nature: Nature, policy: MakePolicy) -> None:
        self._agenda = Agenda(nature.setting.seed)
        self.fleet = Fleet(nature, self._agenda, lambda v, s: self._policy.loaded(v, s))
        self.losses_s: list[float] = []
        for volunteer in range(nature.count):
            self._schedule(nature, volunteer)
        self._policy = policy(Market(nature, self._agenda, self.fleet))

    @property
    def said(self) -> Said | None:
        """The messages of the policy's volunteers."""
        return self._policy.said

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
        self._policy.joined(volunteer)

    def _depart(self, volunteer: int, crash: bool) -> None:
        if self.fleet.serving(volunteer):
            self.losses_s.append(self._agenda.now)
        self.fleet.vanish(volunteer)
        self._agenda.after(DETECTION_S if crash else 0.0, lambda: self._policy.departed(volunteer))
