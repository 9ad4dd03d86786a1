"""Watches volunteers on this machine through their control sockets: who is where, and since when.

Holds what was seen, by the volunteers' names; times are Unix seconds of the events themselves,
not of the poll. Steers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from client.control.snapshot import EventView, Snapshot
from client.lab.local_swarm import LocalSwarm, Member
from tests.bench.matching_optimum import Seats

POLL_S = 0.3
COVERED = "every stage is covered"
"""How the matching begins to report the gang start."""


@dataclass
class Watch:
    """The observations of a swarm of ``stages`` stages."""

    swarm: LocalSwarm
    stages: int
    last: dict[str, Snapshot] = field(default_factory=dict)
    joined_at: dict[str, float] = field(default_factory=dict)
    """By peer: when the first other volunteer knew it as a member."""
    held_at: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """By name: (when, stage) of every stage it was told to fetch and serve."""
    serving_at: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    homes: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """By name: (when, stage) of each home it was seen serving; several are moves."""
    started_at: float | None = None
    """The gang start."""
    tokens_at: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By step: when its end was first heard of, and the tokens trained by then."""
    rates: dict[tuple[str, int], float] = field(default_factory=dict)
    """Microbatches per second of computing, by name and stage, as last told."""
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
            for event in member.new_events():
                self._learn(member.name, event)
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

    def watch(self, seconds: float) -> None:
        """Go on looking for so long."""
        deadline = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > deadline, "watching", seconds + 60)

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

    def joined(self, name: str) -> float | None:
        """Return when another volunteer first knew this one as a member."""
        now = self.last.get(name)
        return self.joined_at.get(now.peer) if now else None

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

    def tokens_per_s(self, since: float) -> float | None:
        """Return the mean speed over the steps that ended after a moment; None: too few."""
        marks = sorted(mark for mark in self.tokens_at.values() if mark[0] >= since)
        if len(marks) < 3:
            return None
        (start, before), (end, after) = marks[0], marks[-1]
        return (after - before) / (end - start)

    def words(self) -> str:
        """Say who is where."""
        places = [f"{name}: {now.reason}" for name, now in sorted(self.last.items())]
        return f"replicas {self.replicas()}, {'; '.join(places)}"

    # --- inside -------------------------------------------------------------------------------

    def _note(self, name: str, now: Snapshot) -> None:
        self.last[name] = now
        for stage in now.stages:
            for replica in stage.replicas:
                if replica.peer == now.peer and replica.rate > 0:
                    self.rates[name, stage.stage] = replica.rate
        home = next((s.stage for s in now.seats if s.seat == 0 and s.state == "serving"), None)
        known = self.homes.setdefault(name, [])
        if home is not None and (not known or known[-1][1] != home):
            known.append((time.time(), home))

    def _learn(self, name: str, event: EventView) -> None:
        data = event.data
        if event.kind == "PeerChanged" and data.get("state") == "up":
            peer = str(data["peer"])
            self.joined_at[peer] = min(event.time, self.joined_at.get(peer, event.time))
        elif event.kind == "StageAssigned" and data["state"] in ("held", "serving"):
            book = self.held_at if data["state"] == "held" else self.serving_at
            book.setdefault(name, []).append((event.time, int(str(data["stage"]))))
        elif event.kind == "StepCommitted":
            step, mark = int(str(data["step"])), (event.time, int(str(data["tokens"])))
            self.tokens_at[step] = min(mark, self.tokens_at.get(step, mark))
        elif event.words.startswith(COVERED):
            self.started_at = min(event.time, self.started_at or event.time)
