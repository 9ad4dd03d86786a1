"""Faults seen by the node, each with the times of detection, matching, transfer and resumption.

They follow from the node's events and from changes of the stage map. Pure; times are Unix seconds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from client.control.snapshot import EventView, ReplicaView, Snapshot
from client.quantities import plural
from client.ui.model.words import listed, short
from client.ui.text import clean

MAX_INCIDENTS = 200
MAX_NOTES = 6
MAX_STAGES = 256
SAME_FAULT_S = 30.0
"""A second sign of a fault within this time is not another fault."""
SERVING = "serving"
_AGAIN = re.compile(r"\b(\d{1,6}) steps? (?:is|are) done again", re.A)
_ANEW = re.compile(r"\bbeginning anew at version (\d{1,9})\b", re.A)


@dataclass
class Incident:
    """One fault, or one departure, and its repair."""

    number: int
    title: str
    detected: float
    step: int
    peer: str = ""
    stages: tuple[int, ...] = ()
    """Stages that the lost volunteer served."""
    bare: frozenset[int] = frozenset()
    """Of these, the stages without another replica."""
    in_order: bool = False
    """Whether it left on purpose and handed over."""
    rematched: float | None = None
    transferred: float | None = None
    resumed: float | None = None
    heirs: tuple[str, ...] = ()
    """The volunteers that got the stage."""
    notes: list[str] = field(default_factory=list)
    steps_lost: int = 0
    _before: dict[int, frozenset[str]] = field(default_factory=dict, repr=False)

    @property
    def open(self) -> bool:
        """Whether work has not resumed yet."""
        return self.resumed is None

    @property
    def settled(self) -> bool:
        """Whether it is final."""
        waits = self.rematched is not None and self.transferred is None
        return not self.open and not waits and (self.rematched is not None or not self.bare)

    @property
    def cover(self) -> str:
        """Describe who took over."""
        if self.heirs:
            return f"{listed([short(peer) for peer in self.heirs])} took over"
        if not self.stages:
            return "it served no stage"
        if self.bare:
            return f"{_stages(self.bare)} had no volunteer left"
        return "the others of its stage went on"


class Incidents:
    """The last faults, oldest first."""

    def __init__(self) -> None:
        self._all: deque[Incident] = deque(maxlen=MAX_INCIDENTS)
        self._count = 0
        self._step = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def newest_first(self) -> list[Incident]:
        """All remembered faults."""
        return list(reversed(self._all))

    @property
    def open(self) -> Incident | None:
        """The newest fault that is not repaired yet."""
        return next((found for found in reversed(self._all) if found.open), None)

    def learn(
        self,
        events: Iterable[EventView],
        before: Snapshot | None,
        after: Snapshot,
        at: float,
    ) -> None:
        """Add the changes between the snapshots ``before`` and ``after`` with their ``events``;
        ``at``: Unix seconds of the second."""
        for event in events:
            self._event(event, before or after)
        for incident in self._all:
            if not incident.settled:
                _follow(incident, after, at)

    def _event(self, event: EventView, before: Snapshot) -> None:
        match event.kind:
            case "PeerChanged" if event.data.get("state") == "down":
                self._lost(event, before)
            case "RecoveryEvent" if event.data.get("phase") == "detected":
                self._detected(event, before)
            case "RecoveryEvent" if event.data.get("phase") == "recovered":
                self._resumed(event.time, event.words)
            case "StepCommitted":
                self._committed(event)
                self._resumed(event.time, "")
            case "LogLine" if event.level in ("warning", "error"):
                self._noted(event)

    def _lost(self, event: EventView, before: Snapshot) -> None:
        peer = str(event.data.get("peer", ""))
        reason = clean(event.words).partition(": ")[2] or "no reason known"
        known = self._recent(event.time, peer)
        if known is not None:
            known.notes.append(f"connection: {reason}")
            return
        stages = _stages_told(event) or tuple(sorted(_served(before, peer)))
        in_order = event.data.get("in_order") is True
        verb = "left in order" if in_order else f"was lost: {reason}"
        self._add(event, before, f"{short(peer)} {verb}", peer, stages, in_order)

    def _detected(self, event: EventView, before: Snapshot) -> None:
        peer, fault = event.data.get("peer"), event.data.get("fault")
        known = self._recent(event.time, str(peer or ""))
        if known is not None and fault == "peer":
            _note(known, event.words)
            return
        stages = tuple(sorted(_served(before, str(peer)))) if peer else ()
        if fault == "worker":
            stages = tuple(sorted(seat.stage for seat in before.seats))
        self._add(event, before, clean(event.words, 120), str(peer or ""), stages, False)

    def _add(
        self,
        event: EventView,
        before: Snapshot,
        title: str,
        peer: str,
        stages: Sequence[int],
        in_order: bool,
    ) -> None:
        self._count += 1
        holders = {stage.stage: _serving(stage.replicas) - {peer} for stage in before.stages}
        step = event.data.get("step")
        self._all.append(
            Incident(
                number=self._count,
                title=title,
                detected=event.time,
                step=step if isinstance(step, int) else max(before.step, self._step),
                peer=peer,
                stages=tuple(stages),
                bare=frozenset(stage for stage in stages if peer and not holders.get(stage)),
                in_order=in_order,
                _before=holders,
            )
        )

    def _committed(self, event: EventView) -> None:
        step = event.data.get("step")
        self._step = step + 1 if isinstance(step, int) else self._step

    def _recent(self, at: float, peer: str) -> Incident | None:
        """Return the fault that a second sign belongs to."""
        for incident in reversed(self._all):
            if at - incident.detected > SAME_FAULT_S:
                return None
            if incident.peer and peer in ("", incident.peer):
                return incident
        return None

    def _resumed(self, at: float, words: str) -> None:
        for incident in self._all:
            ready = not incident.bare or incident.transferred is not None
            if incident.open and at > incident.detected and (ready or words):
                incident.resumed = at
                if words:
                    _note(incident, words)

    def _noted(self, event: EventView) -> None:
        newest = self._all[-1] if self._all else None
        if newest is not None and (newest.open or event.time - newest.detected < 2.0):
            _note(newest, event.words)
            newest.steps_lost = max(newest.steps_lost, _steps_redone(event.words, newest.step))


def _follow(incident: Incident, now: Snapshot, at: float) -> None:
    """Find in the stage map the volunteers that were given the lost one's stages, and those that
    serve them."""
    given, served = set(), set()
    for stage in now.stages:
        if stage.stage not in incident.stages:
            continue
        before = incident._before.get(stage.stage, frozenset())
        for replica in stage.replicas:
            if replica.peer not in before and at > incident.detected:
                given.add(replica.peer)
                if replica.state == SERVING:
                    served.add(replica.peer)
    if given and incident.rematched is None:
        incident.rematched = at
    if given:
        incident.heirs = tuple(sorted(given))
    if served and incident.transferred is None:
        incident.transferred = at


def _note(incident: Incident, words: str) -> None:
    text = clean(words)
    if len(incident.notes) < MAX_NOTES and text not in incident.notes:
        incident.notes.append(text)


def _steps_redone(words: str, step: int) -> int:
    """Return how many steps a roll-back undid.

    The log says ``5 steps are done again``, or ``beginning anew at version 30`` in step 35.
    """
    if (found := _AGAIN.search(words)) is not None:
        return int(found[1])
    found = _ANEW.search(words)
    return max(0, step - int(found[1])) if found is not None else 0


def _stages_told(event: EventView) -> tuple[int, ...]:
    """Return the stages that the lost volunteer served, as far as the node knew."""
    told = event.data.get("stages")
    if not isinstance(told, list | tuple):
        return ()
    return tuple(sorted({stage for stage in told[:MAX_STAGES] if isinstance(stage, int)}))


def _served(snapshot: Snapshot, peer: str) -> set[int]:
    return {
        stage.stage
        for stage in snapshot.stages
        for replica in stage.replicas
        if replica.peer == peer
    }


def _serving(replicas: Iterable[ReplicaView]) -> frozenset[str]:
    return frozenset(r.peer for r in replicas if r.state == SERVING)


def _stages(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return f"{'stage' if len(found) == 1 else 'stages'} {listed([str(n) for n in found])}"


def summary(incidents: Incidents) -> str:
    """Describe how many faults there were and whether all are repaired."""
    faults = [found for found in incidents.newest_first if not found.in_order]
    if not faults:
        return "no faults seen"
    left = sum(found.open for found in faults)
    rest = f"{left} not repaired yet" if left else "all repaired"
    return f"{plural(len(faults), 'fault')}, {rest}"
