"""Watches volunteers on this machine through their control sockets: who is where."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from client.control.snapshot import Snapshot
from client.lab.local_swarm import LocalSwarm, Member

POLL_S = 0.3


@dataclass(frozen=True, slots=True)
class Seats:
    """One volunteer's stages: its home, and the neighbouring stage that it also holds."""

    home: int
    second: int | None = None


@dataclass
class Watch:
    """The observations of a swarm of ``stages`` stages."""

    swarm: LocalSwarm
    stages: int
    last: dict[str, Snapshot] = field(default_factory=dict)
    homes: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """By name: (when, stage) of each home it was seen serving; several are moves."""
    empty: list[tuple[float, int]] = field(default_factory=list)
    """(when, stage) seen without a serving replica after all had been covered, twice in a row:
    volunteers are asked one after the other, so one look may miss whom a stage was handed to."""
    covered: bool = False
    _vacant: frozenset[int] = frozenset()

    # --- looking ------------------------------------------------------------------------------

    def poll(self) -> None:
        """Look at everybody who lives."""
        for member in self.alive():
            now = member.snapshot()
            if now is not None:
                self._note(member.name, now)
        held = self.replicas()
        vacant = frozenset(stage for stage in range(self.stages) if not held[stage])
        self.covered = self.covered or not vacant
        if self.covered:
            self.empty += [(time.time(), stage) for stage in sorted(vacant & self._vacant)]
        self._vacant = vacant

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float) -> float:
        """Poll until something holds; return the moment.

        Raises:
            TimeoutError: it does not within ``timeout_s``.
            RuntimeError: a volunteer ended that nobody killed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.poll()
            if holds():
                return time.time()
            for member in self.swarm.members:
                if not member.alive and member.killed_at is None:
                    raise RuntimeError(f"{member.name} ended:\n{member.log_tail(20)}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {timeout_s} s; {self.words()}")
            time.sleep(POLL_S)

    # --- what is so ---------------------------------------------------------------------------

    def alive(self) -> list[Member]:
        """Return those that run."""
        return list(self.swarm.alive)

    def replicas(self) -> list[list[str]]:
        """Return the living volunteers that serve each stage, by their own word."""
        found: list[list[str]] = [[] for _ in range(self.stages)]
        for member in self.alive():
            now = self.last.get(member.name)
            for seat in now.seats if now else ():
                if seat.state == "serving":
                    found[seat.stage].append(member.name)
        return found

    def seats(self) -> dict[str, Seats]:
        """Return the places of the living that serve a home."""
        found = {}
        for member in self.alive():
            now = self.last.get(member.name)
            serving = {s.seat: s.stage for s in now.seats if s.state == "serving"} if now else {}
            if 0 in serving:
                found[member.name] = Seats(serving[0], serving.get(1))
        return found

    def is_matched(self) -> bool:
        """Whether every volunteer serves a home and every stage has the replicas it can have."""
        names = {member.name for member in self.alive()}
        wanted = max(1, min(2, len(names) // self.stages))
        enough = all(len(held) >= wanted for held in self.replicas())
        return enough and self.seats().keys() == names

    def moves(self, within_s: float) -> dict[str, int]:
        """Return the most often that each volunteer changed its home within so many seconds."""
        found = {}
        for name, homes in self.homes.items():
            times = [when for when, _ in homes[1:]]
            found[name] = max(
                (sum(start <= other < start + within_s for other in times) for start in times),
                default=0,
            )
        return found

    def words(self) -> str:
        """Say who is where."""
        places = [f"{name}: {now.reason}" for name, now in sorted(self.last.items())]
        return f"replicas {self.replicas()}, {'; '.join(places)}"

    # --- inside -------------------------------------------------------------------------------

    def _note(self, name: str, now: Snapshot) -> None:
        self.last[name] = now
        home = next((s.stage for s in now.seats if s.seat == 0 and s.state == "serving"), None)
        known = self.homes.setdefault(name, [])
        if home is not None and (not known or known[-1][1] != home):
            known.append((time.time(), home))
