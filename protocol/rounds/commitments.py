"""The commitments of the newest attempts, and whether contributions are what was committed to.

In a run with audits every member of a plan tells all others, observers too, the digests of its
segments before it sends any of them. The digest that a member is Ready for covers all commitments,
and what it got for its own segments has the digests committed to. So a closed step's members agree
on what each has contributed, and a sum can be checked by any of them. State: the newest commitments
and digests, of the members that were heard last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from msgspec.structs import replace

from protocol import limits
from protocol.ids import PeerId
from protocol.rounds.plans import active, owner
from protocol.wire.messages import Commitment, Plan, Segment, encode_message

NEWEST: Final = 8
"""Commitments that are kept of one member: an auditor needs those of the newest steps."""

MAX_AUTHORS: Final = 2 * limits.MAX_REPLICAS_IN_ROUND
"""Members of which they are kept: invented ones are admitted one after another, and a commitment to
a large stage is 17 kB."""


@dataclass(slots=True)
class _Attempt:
    """What a member said in an attempt; the first word stands."""

    said: Commitment | None = None
    came: dict[int, bytes] = field(default_factory=dict)
    """Digests of what it contributed to our segments, by segment."""


class Commitments:
    """See the module's docstring.

    Args:
        me: our own id.
        active: whether the run has audits; else nobody commits to anything.
    """

    def __init__(self, me: PeerId, *, active: bool) -> None:
        self._me, self.active = me, active
        self._kept: dict[PeerId, dict[tuple[int, int], _Attempt]] = {}
        """By step and attempt."""

    def _note(self, peer: PeerId, message: Commitment | Segment) -> _Attempt:
        """Return what is kept of an attempt of a peer, which is heard now. Of too many attempts of
        it the first one is forgotten; of too many peers the one that was heard longest ago."""
        attempts = self._kept[peer] = self._kept.pop(peer, {})
        if len(self._kept) > MAX_AUTHORS:
            del self._kept[next(iter(self._kept))]
        found = attempts.setdefault((message.step, message.attempt), _Attempt())
        if len(attempts) > NEWEST:
            del attempts[next(iter(attempts))]
        return found

    def _of(self, peer: PeerId, step: int, attempt: int) -> _Attempt:
        return self._kept.get(peer, {}).get((step, attempt)) or _Attempt()

    def take(self, peer: PeerId, message: Commitment) -> None:
        """Keep a member's commitment."""
        kept = self._note(peer, message)
        kept.said = kept.said or message

    def came(self, peer: PeerId, message: Segment, digest: bytes) -> None:
        """Note a contribution to a segment of ours."""
        self._note(peer, message).came.setdefault(message.segment, digest)

    def of(self, peer: PeerId, step: int, attempt: int) -> Commitment | None:
        """Return what a member has committed to."""
        return self._of(peer, step, attempt).said

    def digests(self, peer: PeerId, step: int, attempt: int) -> dict[int, bytes]:
        """Return the digests of what a member has sent us, by segment."""
        return self._of(peer, step, attempt).came

    def are_made(self, plan: Plan) -> bool:
        """Whether the members of a plan commit to what they contribute: one alone has nobody to."""
        return self.active and len(plan.members) > 1

    def authors(self, plan: Plan) -> set[PeerId]:
        """Return who has committed to contribute to an attempt."""
        return {peer for peer in self._kept if self.of(peer, plan.step, plan.attempt)}

    def missing(self, plan: Plan) -> list[PeerId]:
        """Return the members of a plan whose commitments are not here."""
        if not self.are_made(plan):
            return []
        at = plan.step, plan.attempt
        return [member.peer for member in plan.members if self.of(member.peer, *at) is None]

    def false(self, plan: Plan) -> list[PeerId]:
        """Return the members that have committed to something else than the plan asks for, or than
        they have contributed to our segments."""
        return [m.peer for m in plan.members if m.peer != self._me and self._is_false(plan, m.peer)]

    def _is_false(self, plan: Plan, peer: PeerId) -> bool:
        said = self.of(peer, plan.step, plan.attempt)
        if said is None:
            return False
        segments = said.segments
        if len(segments) != len(plan.bounds) - 1 or not all(segments[i] for i in active(plan)):
            return True
        came = self.digests(peer, plan.step, plan.attempt)
        return any(owner(plan, i) == self._me and segments[i] != came[i] for i in came)

    def fingerprint(self, plan: Plan) -> bytes | None:
        """Return the digest of all members' commitments to a plan; None: one is missing."""
        if not self.are_made(plan):
            return b""
        summary = blake2b(digest_size=32)
        for member in plan.members:
            said = self.of(member.peer, plan.step, plan.attempt)
            if said is None:
                return None
            summary.update(encode_message(replace(said, signature=b"", era=0)))
        return summary.digest()
