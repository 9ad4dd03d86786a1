"""Faults seen by the node, each with the times of detection, matching, transfer and resumption.

They follow from the node's events and from changes of the stage map. Pure; times are Unix seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from client.control.names import named, with_names
from client.control.snapshot import EventView, ReplicaView, Snapshot
from client.quantities import plural
from client.views.text import clean
from client.views.words import listed

MAX_INCIDENTS = 200
MAX_NOTES = 6
MAX_STAGES = 256
SAME_FAULT_S = 30.0
"""A second sign of a fault within this time is not another fault."""
SERVING = "serving"
Names = Mapping[str, str]
"""Of members, by peer id."""


@dataclass
class Incident:
    """One fault, or one departure, and its repair."""

    number: int
    sign: EventView
    """The event by which it was noticed."""
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
    notes: list[EventView] = field(default_factory=list)
    """What else was told of it."""
    steps_lost: int = 0
    """Steps that were done again."""
    _before: dict[int, frozenset[str]] = field(default_factory=dict, repr=False)

    @property
    def detected(self) -> float:
        """When it was noticed."""
        return self.sign.time

    @property
    def open(self) -> bool:
        """Whether work has not resumed yet."""
        return self.resumed is None

    @property
    def settled(self) -> bool:
        """Whether it is final."""
        waits = self.rematched is not None and self.transferred is None
        return not self.open and not waits and (self.rematched is not None or not self.bare)

    def title(self, names: Names) -> str:
        """Describe it in one line."""
        if self.sign.kind != "PeerChanged":
            return clean(with_names(self.sign.words, self.sign.members, names), 120)
        reason = self.sign.data.get("reason") or "no reason known"
        verb = "left in order" if self.in_order else f"was lost: {reason}"
        return clean(f"{named(self.peer, names)} {verb}")

    def told(self, names: Names) -> list[str]:
        """Return what else was told of it."""
        return [_told(note, names) for note in self.notes]

    def cover(self, names: Names) -> str:
        """Describe who took over."""
        if self.heirs:
            heirs = [named(peer, names) for peer in self.heirs]
            return clean(f"{listed(heirs)} took over")
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
                self._resumed(event.time, event)
            case "StepCommitted":
                self._committed(event)
                self._resumed(event.time, None)
            case "LogLine" if event.level in ("warning", "error"):
                self._noted(event)

    def _lost(self, event: EventView, before: Snapshot) -> None:
        peer = str(event.data.get("peer", ""))
        known = self._recent(event.time, peer)
        if known is not None:
            _note(known, event)
            return
        stages = _stages_told(event) or tuple(sorted(_served(before, peer)))
        in_order = event.data.get("in_order") is True
        self._add(event, before, peer, stages, in_order)

    def _detected(self, event: EventView, before: Snapshot) -> None:
        peer, fault = event.data.get("peer"), event.data.get("fault")
        known = self._recent(event.time, str(peer or ""))
        if known is not None and fault == "peer":
            _note(known, event)
            return
        stages = tuple(sorted(_served(before, str(peer)))) if peer else ()
        if fault == "worker":
            stages = tuple(sorted(seat.stage for seat in before.seats))
        self._add(event, before, str(peer or ""), stages, False)

    def _add(
        self,
        event: EventView,
        before: Snapshot,
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
                sign=event,
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
        if not isinstance(step, int):
            return
        if self._all and step < self._step:  # the swarm was rolled back
            self._all[-1].steps_lost = max(self._all[-1].steps_lost, self._step - step)
        self._step = step + 1

    def _recent(self, at: float, peer: str) -> Incident | None:
        """Return the fault that a second sign belongs to."""
        for incident in reversed(self._all):
            if at - incident.detected > SAME_FAULT_S:
                return None
            if incident.peer and peer in ("", incident.peer):
                return incident
        return None

    def _resumed(self, at: float, told: EventView | None) -> None:
        for incident in self._all:
            ready = not incident.bare or incident.transferred is not None
            if incident.open and at > incident.detected and (ready or told):
                incident.resumed = at
                if told is not None:
                    _note(incident, told)

    def _noted(self, event: EventView) -> None:
        newest = self._all[-1] if self._all else None
        if newest is not None and (newest.open or event.time - newest.detected < 2.0):
            _note(newest, event)


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


def _note(incident: Incident, event: EventView) -> None:
    known = {note.words for note in incident.notes}
    if len(incident.notes) < MAX_NOTES and event.words not in known:
        incident.notes.append(event)


def _told(note: EventView, names: Names) -> str:
    if note.kind == "PeerChanged":
        return clean(f"connection: {note.data.get('reason') or 'no reason known'}")
    return clean(with_names(note.words, note.members, names))


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
