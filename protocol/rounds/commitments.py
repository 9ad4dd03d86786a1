"""The commitments of the newest attempts, and whether contributions are what was committed to.

In a run with audits every member of a plan tells all others, observers too, the digests of its
segments before it sends any of them. The digest that a member is Ready for covers all commitments,
and what it got for its own segments has the digests committed to. So a closed step's members agree
on what each has contributed, and a sum can be checked by any of them. State: the newest commitments
and digests, of the members that were heard last.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeVar

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

Round = tuple[int, int]
"""Step and attempt."""
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class Came:
    """A contribution to a segment of ours: its header, and the digest of its payload."""

    message: Segment
    digest: bytes


class Commitments:
    """See the module's docstring.

    Args:
        me: our own id.
        active: whether the run has audits; else nobody commits to anything.
    """

    def __init__(self, me: PeerId, *, active: bool) -> None:
        self._me, self.active = me, active
        self._said: dict[PeerId, dict[Round, Commitment]] = {}
        self._came: dict[PeerId, dict[Round, dict[int, Came]]] = {}
        """What members contributed to our segments, by segment."""

    def take(self, peer: PeerId, message: Commitment) -> None:
        """Keep a member's commitment; the first one of an attempt stands."""
        said = _of(self._said, peer)
        said.setdefault((message.step, message.attempt), message)
        while len(said) > NEWEST:
            del said[next(iter(said))]

    def other(self, peer: PeerId, step: int, attempt: int) -> Came | None:
        """Return a contribution of a member to a segment of ours that is another one than it has
        committed to; None if there is none, or no commitment."""
        said = self.of(peer, step, attempt)
        came = self._came.get(peer, {}).get((step, attempt), {})
        if said is None:
            return None
        wrong = (one for i, one in came.items() if said.segments[i : i + 1] != (one.digest,))
        return next(wrong, None)

    def came(self, peer: PeerId, message: Segment, digest: bytes) -> None:
        """Note a contribution to a segment of ours; the first one of an attempt stands."""
        came = _of(self._came, peer)
        came.setdefault((message.step, message.attempt), {}).setdefault(
            message.segment, Came(message, digest)
        )
        while len(came) > NEWEST:
            del came[next(iter(came))]

    def of(self, peer: PeerId, step: int, attempt: int) -> Commitment | None:
        """Return what a member has committed to."""
        return self._said.get(peer, {}).get((step, attempt))

    def digests(self, peer: PeerId, step: int, attempt: int) -> dict[int, bytes]:
        """Return the digests of what a member has sent us, by segment."""
        came = self._came.get(peer, {}).get((step, attempt), {})
        return {segment: one.digest for segment, one in came.items()}

    def forget(self, peer: PeerId, step: int, attempt: int) -> None:
        """A peer is lost: forget what it said of attempts later than this one, because its next
        process has not said it."""
        for kept in (self._said.get(peer, {}), self._came.get(peer, {})):
            for later in [of for of in kept if of > (step, attempt)]:
                del kept[later]

    def are_made(self, plan: Plan) -> bool:
        """Whether the members of a plan commit to what they contribute: one alone has nobody to."""
        return self.active and len(plan.members) > 1

    def authors(self, plan: Plan) -> set[PeerId]:
        """Return who has committed to contribute to an attempt."""
        return {peer for peer, said in self._said.items() if (plan.step, plan.attempt) in said}

    def missing(self, plan: Plan) -> list[PeerId]:
        """Return the members of a plan whose commitments are not here."""
        if not self.are_made(plan):
            return []
        members = (PeerId(member.peer) for member in plan.members)
        return [peer for peer in members if self.of(peer, plan.step, plan.attempt) is None]

    def false(self, plan: Plan) -> list[PeerId]:
        """Return the members that have committed to something else than the plan asks for, or than
        they have contributed to our segments."""
        return [
            PeerId(m.peer)
            for m in plan.members
            if m.peer != self._me and self._is_false(plan, PeerId(m.peer))
        ]

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
            said = self.of(PeerId(member.peer), plan.step, plan.attempt)
            if said is None:
                return None
            summary.update(encode_message(replace(said, signature=b"", era=0)))
        return summary.digest()


def _of(kept: dict[PeerId, dict[Round, Kept]], peer: PeerId) -> dict[Round, Kept]:
    """Return what is kept of a peer, which is heard now; of too many the one is forgotten that was
    heard longest ago."""
    found = kept[peer] = kept.pop(peer, {})
    if len(kept) > MAX_AUTHORS:
        del kept[next(iter(kept))]
    return found
