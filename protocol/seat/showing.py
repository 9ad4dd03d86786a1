"""What a member shows to auditors: what it has committed to, and not without end.

Each payload costs the upload of megabytes. An honest auditor asks for each one once, and again when
nothing came for 3 s. So of one step each asker is shown every payload once, and again as often as
it was shown different ones, and eight times more: at most 2 n + 8 payloads for the n that it may
ask for. Where a third of all messages is lost an honest auditor does not notice this bound.

State: what we have contributed to the newest steps, and who was shown what of them. No clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from protocol.ids import PeerId
from protocol.rounds.plans import active, owner
from protocol.wire.messages import AuditRequest, Plan

AGAIN: Final = 8
MAX_ATTEMPTS: Final = 64
"""Contributed to, that are remembered: more than are kept for auditors."""
MAX_ASKERS: Final = 256
"""Of all steps together; the one that was first is forgotten first."""


@dataclass(frozen=True, slots=True)
class _Contributed:
    counted: frozenset[int]
    segments: frozenset[int]
    owned: frozenset[int]
    members: frozenset[str]


@dataclass(slots=True)
class _Seen:
    """What one asker was shown of one step."""

    different: set[tuple[str, int, int, str | None]] = field(default_factory=set)
    again: int = 0


class Showing:
    """See the module's docstring.

    Args:
        me: our own id.
        tensors: the names of what is shown of a microbatch.
    """

    def __init__(self, me: PeerId, tensors: Collection[str]) -> None:
        self._me, self._tensors = me, tensors
        self._contributed: dict[tuple[int, int], _Contributed] = {}
        self._seen: dict[tuple[PeerId, int], _Seen] = {}

    def contributed(self, plan: Plan, counted: frozenset[int]) -> None:
        """We commit to a contribution to a plan."""
        segments = active(plan)
        self._contributed[plan.step, plan.attempt] = _Contributed(
            counted,
            frozenset(segments),
            frozenset(i for i in segments if owner(plan, i) == self._me),
            frozenset(member.peer for member in plan.members),
        )
        while len(self._contributed) > MAX_ATTEMPTS:
            del self._contributed[next(iter(self._contributed))]

    def forget(self, step: int) -> None:
        """The payloads of a step are dropped."""
        self._contributed = {of: one for of, one in self._contributed.items() if of[0] != step}
        self._seen = {of: one for of, one in self._seen.items() if of[1] != step}

    def shows(self, asker: PeerId, asked: AuditRequest) -> bool:
        """Whether an asker is shown this now; that is noted."""
        if not self._has(asked):
            return False
        seen = self._seen.setdefault((asker, asked.step), _Seen())
        while len(self._seen) > MAX_ASKERS:
            del self._seen[next(iter(self._seen))]
        # a tensor of a microbatch is the same in all attempts
        attempt = -1 if asked.name in self._tensors else asked.attempt
        what = asked.name, asked.item, attempt, asked.of
        if what not in seen.different:
            seen.different.add(what)
            return True
        if seen.again >= len(seen.different) + AGAIN:
            return False
        seen.again += 1
        return True

    def _has(self, asked: AuditRequest) -> bool:
        of = self._contributed.get((asked.step, asked.attempt))
        if of is None:
            return False
        if asked.name == "segment":
            if asked.of is None:
                return asked.item in of.segments
            return asked.item in of.owned and asked.of in of.members
        if asked.of is not None:
            return False
        return asked.item == 0 if asked.name == "list" else asked.item in of.counted
