"""The event sink: the node's typed events for its user, and the swarm's progress.

State: the event log, the newest progress and the pace. Decides nothing.
"""

import math
import time
import traceback
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Literal

from client.control.curve import LossCurve
from client.control.snapshot import EventView
from client.control.updates import EVENTS_AT_ONCE, StepPoint
from client.events import (
    Event,
    LineGivenUp,
    LogLine,
    PeerChanged,
    RecoveryEvent,
    StageAssigned,
    StageClosed,
    StepCommitted,
    VersionEvaluated,
)
from client.quantities import plural
from protocol.effects import Explain
from protocol.ids import PeerId, short
from protocol.manifest import Evaluation
from protocol.membership.losses import Believed
from protocol.pipeline.effects import Committed
from protocol.recovery.effects import GivenUp

WINDOW = 12
IDLE: Final = 10
"""Times the usual wait after which nothing was computed meanwhile: the run was complete until it
was extended, or a stage had nobody."""
LEAST_IDLE_S: Final = 60.0


class Pace:
    """A short history of (monotonic seconds, tokens so far)."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def note(self, now: float, tokens: int) -> None:
        """Add a mark; tokens never fall. A long time without any is not part of the rate."""
        if len(self._marks) > 1:
            (start, _), (end, _) = self._marks[0], self._marks[-1]
            usual_s = (end - start) / (len(self._marks) - 1)
            if now - end > max(LEAST_IDLE_S, IDLE * usual_s):
                self._marks.clear()
        self._marks.append((now, tokens))

    def per_s(self) -> float:
        """Return the mean rate over the window, 0 before the second mark."""
        if len(self._marks) < 2:
            return 0.0
        (start, before), (end, after) = self._marks[0], self._marks[-1]
        return (after - before) / (end - start) if end > start else 0.0


SHOWN_S: Final = 600.0
"""Seconds without consequences after which an error counts as over."""


class EventLog:
    """The newest ``capacity`` events of a node, as front ends read them."""

    def __init__(self, capacity: int = 1024) -> None:
        self._ring: deque[EventView] = deque(maxlen=capacity)
        self._seq = 0

    def append(self, event: Event, wall: float) -> EventView:
        """Add an event that happened at ``wall`` (unix seconds)."""
        self._seq += 1
        view = EventView.of(self._seq, wall, event)
        self._ring.append(view)
        return view

    def since(self, seq: int) -> tuple[list[EventView], int]:
        """Return up to ``EVENTS_AT_ONCE`` events after ``seq``, oldest first, and how many between
        were missed."""
        events = list(islice((each for each in self._ring if each.seq > seq), EVENTS_AT_ONCE))
        return events, events[0].seq - seq - 1 if events else 0


class EventSink:
    """Turns what happens into events."""

    def __init__(
        self,
        on_event: Callable[[Event], None],
        curve: LossCurve | None = None,
        held_out_curve: LossCurve | None = None,
    ) -> None:
        self.log, self._on_event = EventLog(), on_event
        self.progress: StepCommitted | None = None
        """The newest step of which this session has heard."""
        self.vouchers = 0
        """Replicas of the last stage whose word the progress is; 0: our own."""
        self.pace = Pace()
        self.curve, self.held_out_curve = curve or LossCurve(), held_out_curve or LossCurve()
        """Losses by step; losses on held-out text by version."""
        self.held_out: VersionEvaluated | None = None
        """The newest version of which this session has heard a number."""
        self.given_up: EventView | None = None
        """Our line of the run that was given up last, in this session."""
        self._error: EventView | None = None

    @property
    def loss(self) -> float | None:
        """Loss of the newest step; of an earlier session's step if this one has seen none."""
        if self.progress is not None:
            return self.progress.loss
        newest = self.curve.points(1)
        return newest[0].loss if newest else None

    def publish(self, event: Event) -> None:
        view = self.log.append(event, time.time())
        if _is_error(view):
            self._error = view
        if isinstance(event, LineGivenUp):
            self.given_up = view
        self._on_event(event)

    @property
    def last_error(self) -> tuple[str, float] | None:
        """The newest error of this node that is not over, and its time in Unix seconds."""
        if self._error is None or time.time() > self._error.time + SHOWN_S:
            return None
        return self._error.words, self._error.time

    def explain(self, effect: Explain) -> None:
        if self._error is not None and self._error.words == effect.over:
            self._error = None
        self.publish(
            LogLine(
                words=effect.words,
                level=effect.level,
                about=effect.topic,
                members=effect.members,
                decision=effect.decision,
            )
        )

    def survived(self, what: str, error: Exception) -> None:
        """An unexpected error of ours did not stop the node."""
        where = "".join(traceback.format_exception(error)[-3:])
        self.explain(Explain("swarm", f"internal error on {what}: {error!r}", "error"))
        self.explain(Explain("swarm", where, "debug"))

    def progressed(
        self, step: int, loss: float, tokens: int, now: float, vouchers: int = 0
    ) -> None:
        """Take the swarm's progress (loss in nats, tokens up to this step); one that is not newer
        is ignored. ``vouchers``: replicas of the last stage that report it; 0: we computed it."""
        if self.progress is not None and step <= self.progress.step:
            return
        words = f"step {step}: loss {loss:.4f}"
        self.progress = StepCommitted(words=words, step=step, loss=loss, tokens=tokens)
        self.vouchers = vouchers
        self.pace.note(now, tokens)
        self.curve.note(StepPoint(step, time.time(), loss, self.pace.per_s()))
        self.publish(self.progress)

    def evaluated(self, shown: Believed, terms: Evaluation) -> None:
        """Take what is believed of a version's loss on held-out text."""
        words = (
            f"version {shown.version}: held-out loss {shown.loss:.4f} "
            f"(told by {shown.vouchers} of {shown.claims})"
        )
        event = VersionEvaluated(
            words=words,
            version=shown.version,
            loss=shown.loss,
            bits_per_byte=bits_per_byte(shown.loss, terms),
            tokens=terms.tokens,
            vouchers=shown.vouchers,
            claims=shown.claims,
        )
        if event == self.held_out:
            return
        self.held_out = event
        self.held_out_curve.note(StepPoint(shown.version, time.time(), shown.loss))
        self.publish(event)

    def worker_died(self, death: Exception) -> None:
        """The compute worker died, and is started again."""
        words = f"{death}; restarting it"
        self.publish(RecoveryEvent(words=words, fault="worker", phase="detected"))

    def rolled_back(self, version: int) -> None:
        """Note a roll-back to a version: later steps will be repeated."""
        self.curve.rolled_back(version)
        self.held_out_curve.rolled_back(version + 1)
        if self.held_out is not None and self.held_out.version > version:
            self.held_out = None
        if self.progress is not None and self.progress.step >= version:
            self.progress, self.pace = None, Pace()

    def gave_up(self, given_up: GivenUp) -> None:
        """Our line of the run was given up for that of others, which goes further."""
        self.rolled_back(given_up.version - given_up.steps)
        members = ", ".join(map(short, given_up.members))
        steps, are = plural(given_up.steps, "step"), "is" if given_up.steps == 1 else "are"
        words = (
            f"{steps} made here without {members} {are} given up: the run goes on "
            f"from theirs, at version {given_up.reached}; the last checkpoints of ours, up to "
            f"version {given_up.version}, stay on the disk with the ending .set-aside"
        )
        self.publish(
            LineGivenUp(
                words=words,
                level="warning",
                steps=given_up.steps,
                version=given_up.version,
                reached=given_up.reached,
                members=given_up.members,
            )
        )

    def closed(self, committed: Committed) -> None:
        """A seat of ours has applied a step; for programs."""
        self.publish(
            StageClosed(
                words=f"stage {committed.stage} is at version {committed.version}",
                level="debug",
                stage=committed.stage,
                version=committed.version,
                hash=committed.hash,
                counted=committed.counted,
                attempt=committed.attempt,
                era=committed.era,
                grad_norm=committed.grad_norm,
            )
        )

    def peer(self, peer: PeerId, state: Literal["up", "down"], reason: str) -> None:
        """Report that ``peer`` came or went (``state``), with the ``reason`` in words."""
        words = f"{short(peer)} is {state}: {reason}"
        level: Literal["info", "warning"] = "info" if state == "up" else "warning"
        self.publish(PeerChanged(words=words, level=level, peer=peer, state=state, reason=reason))

    def assigned(self, stage: int, state: Literal["held", "serving", "left"], words: str) -> None:
        """Report a change of our place, for programs; the matching informs the user itself."""
        if state == "serving" and self._error is not None and self._error.topic == "transfer":
            self._error = None  # the problem that kept us from the stage is over
        self.publish(StageAssigned(words=words, level="debug", stage=stage, state=state))


def bits_per_byte(loss: float, terms: Evaluation) -> float:
    """Return a loss of held-out tokens (nats) in bits per byte of the text that they stand for."""
    return loss * terms.tokens / (math.log(2) * terms.size_bytes)


def _is_error(event: EventView) -> bool:
    """Whether an event reports a problem of this node: its disk, its text or its worker. Others
    joining, leaving or being late is no error of this node."""
    if event.level == "error":
        return True
    return event.level == "warning" and event.topic == "transfer"
