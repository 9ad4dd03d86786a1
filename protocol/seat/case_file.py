"""The case that a member of a stage of two shows to umpires (``umpire.py``).

It is made of one audit: the version is written down when the audit begins, what the audited member
shows is kept, and if the contribution is a lie, all of it is shown to the members beside the stage.
They are told every few seconds until they ask, for as long as it is kept. One case is kept at a
time. Each umpire is shown every payload once, and as many again.

State: the newest case, and who was shown how much. ``now`` is monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from protocol.audit.audit import Subject
from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import PayloadKey, SendPayload
from protocol.wire.fields import Envelope
from protocol.wire.messages import Case, CaseReply, CaseRequest

KEPT_S: Final = 180.0
TELL_AGAIN_S: Final = 5.0
AGAIN: Final = 8


@dataclass(slots=True)
class _File:
    subject: Subject
    commitment: Envelope
    before: float
    until: float
    tell_at: float
    charge: Envelope | None = None
    """Once it is signed."""
    shown: Counter[PeerId] = field(default_factory=Counter)


class CaseFile:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._file: _File | None = None

    @property
    def step(self) -> int | None:
        """The step whose payloads the case needs."""
        return None if self._file is None else self._file.subject.step

    @property
    def member(self) -> PeerId | None:
        """The charged one."""
        return None if self._file is None else self._file.subject.member

    def open(self, subject: Subject, commitment: Envelope, before: float, now: float) -> None:
        """A lie was found: keep its case; ``before`` is the norm of the sum of the step before."""
        self._file = _File(subject, commitment, before, now + KEPT_S, now)

    def charged(self, envelope: Envelope, member: PeerId, step: int) -> None:
        """The charge that the case is about is signed."""
        of = self._file
        if of is not None and (of.subject.member, of.subject.step) == (member, step):
            of.charge = envelope

    def close(self, member: PeerId) -> None:
        """A member is out: nobody has to judge it."""
        if self.member == member:
            self._file = None

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return None if self._file is None else min(self._file.until, self._file.tell_at)

    def tick(self, umpires: Collection[tuple[PeerId, int]], now: float) -> list[Send]:
        """Tell umpires, and forget a case that was kept long enough.

        Args:
            umpires: the members beside our stage, each with its stage.
            now: monotonic seconds.
        """
        of = self._file
        if of is None or now < min(of.until, of.tell_at):
            return []
        if now >= of.until:
            self._file = None
            return []
        of.tell_at = now + TELL_AGAIN_S
        if of.charge is None:
            return []
        bounds = list(of.subject.bounds)
        return [
            Send(peer, Case(stage, of.charge, of.commitment, bounds, of.before))
            for peer, stage in sorted(umpires)
            if not of.shown[peer]
        ]

    def show(self, sender: PeerId, asked: CaseRequest) -> list[SendPayload]:
        """Show an umpire what it asks for, if it is of the case."""
        of = self._file
        if of is None or asked.name == "commitment":
            return []
        subject = of.subject
        if (asked.step, asked.attempt, asked.member) != (
            subject.step,
            subject.attempt,
            subject.member,
        ):
            return []
        payloads = 1 + len(subject.counted) * len(subject.tensors) + len(subject.segments)
        if of.shown[sender] >= 2 * payloads + AGAIN:
            return []
        of.shown[sender] += 1
        what = asked.step, asked.attempt, asked.member, asked.name, asked.item
        key = PayloadKey(asked.step, asked.name, asked.item, asked.attempt, subject.member)
        return [SendPayload(sender, CaseReply(asked.asker, *what), (key,))]
