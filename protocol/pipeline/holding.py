"""The holders of a microbatch at the next stage: one replica, or two while a backup runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from protocol.ids import PeerId
from protocol.pipeline.effects import PayloadKey, SendPayload
from protocol.wire.messages import Forward

BUSY_RETRY_S = 0.02
BUSY_RETRY_MAX_S = 1.0
SPOILT_RETRY_S = 1.0
"""Pause before a gradient is asked for again if only the replica that gave a malformed one can have
it."""


@dataclass(slots=True)
class Holder:
    """A replica that was sent a microbatch."""

    peer: PeerId
    attempt: int
    sent_at: float
    queue: int = 1
    """Microbatches that it had of us then, this one included."""
    charge_s: float | None = None
    """Seconds charged to the holder's account for it; None: nothing."""
    alone: bool = True
    """No replica had the microbatch before: its time is worth a sample (Karn)."""
    held_since: float | None = None
    """When it answered for it."""
    deadline: float | None = None
    """Monotonic seconds; None: nothing to wait for."""
    asked_at: float | None = None
    """It is late, and was asked whether it is there."""
    answers: int = 0
    """How often it has said so."""


@dataclass(slots=True)
class Delivery:
    """The state of one microbatch at the next stage."""

    step: int
    microbatch: int
    attempt: int = 0
    holder: Holder | None = None
    backup: Holder | None = None
    """A second replica that runs it too; whoever brings the gradient first is the holder."""
    asked: set[PeerId] | None = None
    """Replicas that have not yet answered our Have; None: no question for its holder is out."""
    sent_to: set[PeerId] = field(default_factory=set)
    busy: set[PeerId] = field(default_factory=set)
    spoilt: set[PeerId] = field(default_factory=set)
    """Replicas that gave a malformed gradient of it; they would give the same again."""
    again: bool = False
    """Somebody else of our stage, or we, sent it before to a replica that is gone."""
    backed_up: bool = False
    returned: bool = False
    """Its gradient is here; only the holder's ledger matters from now on."""
    deadline: float | None = None
    """When to ask or send again without a holder, in monotonic seconds; None: only on an event."""
    backoff_s: float = BUSY_RETRY_S
    not_before: float = 0.0
    """Until then it is neither asked for nor sent, in monotonic seconds."""

    @property
    def state(self) -> Literal["idle", "asking", "offered", "held"]:
        """How far it is."""
        if self.holder is not None:
            return "offered" if self.holder.held_since is None else "held"
        return "idle" if self.asked is None else "asking"

    @property
    def rests(self) -> bool:
        """Whether nothing is to be done about it before there is news of it or of its holder: its
        gradient is here, and somebody answers for it."""
        holder, backup = self.holder, self.backup
        if not self.returned or holder is None or holder.held_since is None:
            return False
        backed_up = backup is not None and backup.deadline is not None
        return self.deadline is None and holder.deadline is None and not backed_up

    @property
    def peer(self) -> PeerId | None:
        """The replica that answers for it, or is expected to."""
        return self.holder.peer if self.holder else None

    def holders(self) -> list[Holder]:
        """Return its holders."""
        return [holder for holder in (self.holder, self.backup) if holder is not None]

    def held_by(self, peer: PeerId) -> Holder | None:
        """Return a replica's part in it."""
        return next((holder for holder in self.holders() if holder.peer == peer), None)

    def helpful(self, live: set[PeerId], committed: int) -> set[PeerId]:
        """Return the replicas of the next stage, at version ``committed``, that may bring its
        gradient. One that spoilt it is left out, unless the step is closed there: then no other one
        can compute it."""
        others = live - self.spoilt
        return others if others and self.step >= committed else set(live)

    def spoil(self, giver: PeerId, live: set[PeerId], committed: int, now: float) -> None:
        """Note that ``giver`` gave a malformed gradient; pause if no other replica can help.

        Args:
            giver: the replica.
            live: live replicas of the next stage.
            committed: the next stage's version.
            now: monotonic seconds.
        """
        self.spoilt.add(giver)
        if giver in self.helpful(live, committed):
            self.not_before = now + SPOILT_RETRY_S

    def next_deadline(self) -> float | None:
        """Return when something is to be done about it."""
        deadlines = [self.deadline, *(holder.deadline for holder in self.holders())]
        return min((d for d in deadlines if d is not None), default=None)


def forward(
    delivery: Delivery, holder: Holder, stage: int, tokens_bytes: int, *, again: bool
) -> SendPayload:
    """Return the effect that sends a microbatch to a holder.

    Args:
        delivery: the microbatch.
        holder: the replica that gets it.
        stage: the holder's stage.
        tokens_bytes: size of the tokens in the payload.
        again: a replica had it before.
    """
    step, microbatch = delivery.step, delivery.microbatch
    message = Forward(stage, step, microbatch, holder.attempt, tokens_bytes, again)
    keys = (PayloadKey(step, "tokens", microbatch), PayloadKey(step, "output", microbatch))
    return SendPayload(holder.peer, message, keys)


def fresh_delivery(step: int, microbatch: int, old: Delivery | None) -> Delivery:
    """Return a new delivery of ``microbatch`` in ``step``; it continues the attempts of ``old``, a
    discarded one."""
    if old is None or old.step != step:
        return Delivery(step, microbatch)
    return Delivery(step, microbatch, old.attempt, sent_to=old.sent_to, again=True)
