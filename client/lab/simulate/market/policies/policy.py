"""The interface of a placement policy, and the baselines' view of the world.

``Market`` is that view: the volunteers believed alive, their present and future places,
and the resulting loads, exact and without delay. It shows no crash before it is detected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from client.lab.simulate.agenda import Agenda
from client.lab.simulate.market.fleet import Fleet
from client.lab.simulate.market.nature import Flags, Ints, Nature

NOWHERE = -1


@dataclass
class Said:
    """Counts of messages so far."""

    letters: int = 0
    """Signed messages from one peer to another."""
    letter_bytes: int = 0
    records: int = 0
    """Records received by all."""
    record_bytes: int = 0
    penalties: int = 0
    """Faults of peers; there are none among honest ones."""


class Policy(Protocol):
    """Places volunteers. It is called on events and acts through a ``Market`` or on its own."""

    @property
    def said(self) -> Said | None:
        """Messages between volunteers; None if the policy is not a protocol."""

    def joined(self, volunteer: int) -> None:
        """A volunteer has joined."""

    def departed(self, volunteer: int) -> None:
        """A volunteer is known to be gone."""

    def loaded(self, volunteer: int, stage: int) -> None:
        """A download is complete."""


class Market:
    """The baselines' view and actions. Levels are those after all downloads."""

    def __init__(self, nature: Nature, agenda: Agenda, fleet: Fleet) -> None:
        self.nature, self.agenda, self.fleet = nature, agenda, fleet
        self.rates: Ints = nature.rates  # (N, S)
        self.stages = nature.setting.stages
        self.believed: Flags = np.zeros(nature.count, dtype=bool)
        self.home: Ints = np.full(nature.count, NOWHERE, dtype=np.int64)
        self.second: Ints = np.full(nature.count, NOWHERE, dtype=np.int64)
        self.levels: Ints = np.zeros(self.stages, dtype=np.int64)
        """Summed rates of those at home at every stage; who has two stages counts half at each."""
        self.replicas: Ints = np.zeros(self.stages, dtype=np.int64)
        """By home, dual-homed ones at both."""

    def believe(self, volunteer: int, alive: bool) -> None:
        """Note that a volunteer has joined or left."""
        self._count(volunteer, -1)
        self.believed[volunteer] = alive
        if not alive:
            self.home[volunteer] = self.second[volunteer] = NOWHERE
        self._count(volunteer, +1)

    def settled(self, volunteer: int) -> bool:
        """Whether a volunteer serves its home and fetches nothing."""
        return self.home[volunteer] in self.fleet.serving(volunteer) and not self.fleet.fetching(
            volunteer
        )

    def place(self, volunteer: int, stage: int) -> None:
        """Send a volunteer to a home; until then it serves its present home, without a second
        stage."""
        if self.second[volunteer] != NOWHERE:
            self.place_second(volunteer, NOWHERE)
        if self.home[volunteer] == stage:
            return
        self._count(volunteer, -1)
        self.home[volunteer] = stage
        self._count(volunteer, +1)
        self.fleet.fetch(volunteer, stage)

    def place_second(self, volunteer: int, stage: int) -> None:
        """Give a volunteer a second stage, or take it (NOWHERE)."""
        old = int(self.second[volunteer])
        self._count(volunteer, -1)
        self.second[volunteer] = stage
        self._count(volunteer, +1)
        if old != NOWHERE:
            self.fleet.drop(volunteer, old)
        if stage != NOWHERE:
            self.fleet.fetch(volunteer, stage)

    def loaded(self, volunteer: int, stage: int) -> None:
        """Serve a fetched stage and leave the former home."""
        self.fleet.serve(volunteer, stage)
        wanted = (self.home[volunteer], self.second[volunteer])
        if stage == wanted[0]:
            for former in self.fleet.serving(volunteer):
                if former not in wanted:
                    self.fleet.drop(volunteer, former)

    def members(self, stage: int) -> Ints:
        """Return the volunteers at home at a stage or on their way there."""
        return np.flatnonzero(self.home == stage)

    def _count(self, volunteer: int, sign: int) -> None:
        home, second = int(self.home[volunteer]), int(self.second[volunteer])
        held = [stage for stage in (home, second) if stage != NOWHERE]
        for stage in held:
            self.levels[stage] += sign * (self.rates[volunteer, stage] // len(held))
            self.replicas[stage] += sign


MakePolicy = Callable[[Market], Policy]
"""Begins a policy by what it sees and may do."""
