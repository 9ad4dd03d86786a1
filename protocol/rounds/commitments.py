"""The commitments of the newest attempts, and whether contributions are what was committed to.

In a run with audits every member of a plan tells all others, observers too, the digests of its
segments before it sends any of them. The digest that a member is Ready for covers all commitments,
and what it got for its own segments has the digests committed to. So a closed step's members agree
on what each has contributed, and a sum can be checked by any of them. State: the newest
commitments, of the members that were heard last.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from msgspec.structs import replace

from protocol import limits
from protocol.ids import PeerId
from protocol.rounds.plans import active, owner
from protocol.wire.messages import Commitment, Plan, encode_message

Came = Mapping[PeerId, Mapping[int, bytes]]
"""Digests of what members have contributed to our segments, by member and segment."""
NEWEST: Final = 8
"""Commitments that are kept of one member: an auditor needs those of the newest steps."""

MAX_AUTHORS: Final = 2 * limits.MAX_REPLICAS_IN_ROUND
"""Members of which they are kept: invented ones are admitted one after another, and a commitment to
a large stage is 17 kB."""


class Commitments:
    """See the module's docstring.

    Args:
        me: our own id.
        active: whether the run has audits; else nobody commits to anything.
    """

    def __init__(self, me: PeerId, *, active: bool) -> None:
        self._me, self.active = me, active
        self._kept: dict[PeerId, dict[tuple[int, int], Commitment]] = {}
        """By step and attempt."""

    def take(self, peer: PeerId, message: Commitment) -> None:
        """Keep a member's commitment; its first word on an attempt stands. Of too many attempts of
        it the first one is forgotten; of too many peers the one that was heard longest ago."""
        kept = self._kept[peer] = self._kept.pop(peer, {})
        kept.setdefault((message.step, message.attempt), message)
        if len(kept) > NEWEST:
            del kept[next(iter(kept))]
        if len(self._kept) > MAX_AUTHORS:
            del self._kept[next(iter(self._kept))]

    def of(self, peer: PeerId, step: int, attempt: int) -> Commitment | None:
        """Return what a member has committed to."""
        return self._kept.get(peer, {}).get((step, attempt))

    def are_made(self, plan: Plan) -> bool:
        """Whether the members of a plan commit to what they contribute: one alone has nobody to."""
        return self.active and len(plan.members) > 1

    def missing(self, plan: Plan) -> list[PeerId]:
        """Return the members of a plan whose commitments are not here."""
        if not self.are_made(plan):
            return []
        at = plan.step, plan.attempt
        return [member.peer for member in plan.members if self.of(member.peer, *at) is None]

    def false(self, plan: Plan, came: Came) -> list[PeerId]:
        """Return the members that have committed to something else than the plan asks for, or than
        ``came`` of them."""
        others = [PeerId(m.peer) for m in plan.members if m.peer != self._me]
        return [peer for peer in others if self._is_false(plan, peer, came.get(peer, {}))]

    def _is_false(self, plan: Plan, peer: PeerId, came: Mapping[int, bytes]) -> bool:
        said = self.of(peer, plan.step, plan.attempt)
        if said is None:
            return False
        segments = said.segments
        if len(segments) != len(plan.bounds) - 1 or not all(segments[i] for i in active(plan)):
            return True
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
