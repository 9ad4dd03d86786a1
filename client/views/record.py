"""This front end's record of the node: the newest update, and bounded histories.

It has no view and no clock: all times come from the updates.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from client.control.curve import LossCurve
from client.control.snapshot import EventView, Snapshot
from client.control.updates import StepPoint, Update

MAX_EVENTS = 2000
MAX_RATES = 240
RATE_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per second in one stretch of time."""

    sent: float
    received: float


@dataclass
class Record:
    """The data of all tabs."""

    snapshot: Snapshot | None = None
    time: float = 0.0
    """Unix seconds of the newest update."""
    missed: int = 0
    """Events that were dropped before we read them."""
    events: deque[EventView] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    losses: LossCurve = field(default_factory=LossCurve)
    held_out: LossCurve = field(default_factory=LossCurve)
    """On held-out text, by version."""
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RATES))
    """Tokens per second of the swarm, one per update."""
    traffic: deque[Traffic] = field(default_factory=lambda: deque(maxlen=MAX_RATES))
    _bytes: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=256))

    def apply(self, update: Update) -> None:
        """Add an update; one of another node begins a new record."""
        if self.snapshot is not None and update.snapshot.peer != self.snapshot.peer:
            self._forget()
        fresh = self._fresh(update)
        self.missed += update.missed
        self.events.extend(fresh)
        self.snapshot, self.time = update.snapshot, update.time
        for event in fresh:
            self._note_loss(event)
        self._note_rates(update)

    def learn_curve(self, points: Sequence[StepPoint], held_out: Sequence[StepPoint] = ()) -> None:
        """Add the node's history of the run before our first update: steps, and held-out losses."""
        self.losses.learn(points)
        self.held_out.learn(held_out)

    @property
    def names(self) -> Mapping[str, str]:
        """Names of members, by peer id."""
        return self.snapshot.names if self.snapshot else {}

    @property
    def rates(self) -> Traffic:
        """Bytes per second over the last few seconds."""
        return self.traffic[-1] if self.traffic else Traffic(0.0, 0.0)

    def _forget(self) -> None:
        self.snapshot, self.missed = None, 0
        self.losses, self.held_out = LossCurve(), LossCurve()
        for seen in (self.events, self.speeds, self.traffic, self._bytes):
            seen.clear()

    def _fresh(self, update: Update) -> list[EventView]:
        """Return the events not seen yet; a restarted node numbers its events from the start."""
        again = self.snapshot is not None and self.snapshot.pid != update.snapshot.pid
        last = self.events[-1].seq if self.events and not again else 0
        return [event for event in update.events if event.seq > last]

    def _note_loss(self, event: EventView) -> None:
        number, curve = event.data.get("step"), self.losses
        if event.kind == "VersionEvaluated":
            number, curve = event.data.get("version"), self.held_out
        elif event.kind != "StepCommitted":
            return
        loss = event.data.get("loss")
        if isinstance(number, int) and isinstance(loss, int | float):
            now = self.snapshot.tokens_per_s if self.snapshot else 0.0
            curve.note(StepPoint(number, event.time, float(loss), now))

    def _note_rates(self, update: Update) -> None:
        self.speeds.append(update.snapshot.tokens_per_s)
        network = update.snapshot.network
        self._bytes.append((update.time, network.sent_bytes, network.received_bytes))
        while len(self._bytes) > 2 and self._bytes[1][0] <= update.time - RATE_WINDOW_S:
            self._bytes.popleft()
        (_, sent, received), span = self._bytes[0], update.time - self._bytes[0][0]
        if span > 0:
            self.traffic.append(
                Traffic(
                    max(0, network.sent_bytes - sent) / span,
                    max(0, network.received_bytes - received) / span,
                )
            )
