"""Counts the microbatches and rounds of all our seats since the node started."""

from typing import Literal

from client.control.snapshot import Counters
from client.events import RecoveryEvent
from client.train.ports import Ports
from client.train.reporting.event_sink import EventSink
from protocol.ids import PeerId
from protocol.pipeline.effects import Committed, Rerouted


class Counting:
    """Counts for the status, and reports recoveries."""

    def __init__(self, ports: Ports, event_sink: EventSink) -> None:
        self._ports, self._event_sink = ports, event_sink
        self._detected_at: float | None = None
        self._detected_step = 0
        self._rerouted = set[tuple[int, int]]()
        """Stage and microbatch of what was re-routed since then."""
        self.seen = Counters()
        """But for what was refused, and what open seats have planned again."""

    def note_committed(self, committed: Committed) -> None:
        self.seen.rounds_committed += 1
        self.seen.rounds_restarted += max(0, committed.attempt - 1)
        self._event_sink.closed(committed)
        if committed.version > self._detected_step:  # the loss is recovered: no gradient will come
            self._detected_at = None

    def note_rerouted(self, stage: int, rerouted: Rerouted) -> None:
        """A microbatch of a stage goes to another replica, because one was lost or was late."""
        self.seen.rerouted_microbatches += 1
        self.seen.lost_microbatches += rerouted.replayed
        if self._detected_at is None:
            self._detected_at, self._detected_step = self._ports.now(), rerouted.step
            self._rerouted.clear()
            words = f"{rerouted.cause}: its microbatches go to other replicas"
            self._tell(words, "detected", rerouted.step, rerouted.lost_peer)
        self._rerouted.add((stage, rerouted.microbatch))

    def note_gradient(self, stage: int, step: int, microbatch: int) -> None:
        """A gradient came; the first of a re-routed microbatch ends the recovery."""
        if (stage, microbatch) in self._rerouted and self._detected_at is not None:
            taken_s = self._ports.now() - self._detected_at
            self._detected_at = None
            words = f"first gradient of a re-routed microbatch {taken_s:.2f} s after detection"
            self._tell(words, "recovered", step)

    def _tell(
        self,
        words: str,
        phase: Literal["detected", "recovered"],
        step: int,
        peer: PeerId | None = None,
    ) -> None:
        event = RecoveryEvent(words=words, fault="peer", phase=phase, step=step, peer=peer)
        self._event_sink.publish(event)
