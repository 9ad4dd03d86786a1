"""Values derived from a plan: segments, their owners, and the digest of what a round applies."""

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.pipeline.effects import PayloadKey
from protocol.rounds.reports import Report
from protocol.wire.messages import Plan, Reduced, encode_message
from protocol.wire.parts import PlanMember


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A reduced segment as its sender announced it."""

    digest: bytes
    sq_norm: float
    own_sq_norm: float = 0.0


def plan_digest(
    leader: PeerId, plan: Plan, broadcasts: Sequence[Broadcast], beside: bytes = b""
) -> bytes:
    """Return the BLAKE2b-256 of everything that a round applies. Members that were sent different
    plans are Ready for different digests.

    Args:
        leader: the plan's author.
        plan: the plan.
        broadcasts: of all segments, in order.
        beside: the hash of what members have committed to contribute, in a run with audits.
    """
    summary = hashlib.blake2b(digest_size=32)
    summary.update(f"{leader}|".encode())
    summary.update(encode_message(replace(plan, era=0, signature=b"", promises=())))
    for broadcast in broadcasts:
        norms = struct.pack(">dd", broadcast.sq_norm, broadcast.own_sq_norm)
        summary.update(broadcast.digest + norms)
    summary.update(beside)
    return summary.digest()


def active(plan: Plan) -> list[int]:
    """Return the indices of segments that have elements."""
    return [i for i, (a, b) in enumerate(pairwise(plan.bounds)) if b > a]


def owner(plan: Plan, segment: int) -> PeerId | None:
    """Return the owner of a segment, None if the plan has no such segment."""
    place = segment // _segments(plan)
    return plan.members[place].peer if place < len(plan.members) else None


def in_sending_order(plan: Plan, me: PeerId) -> list[int]:
    """Return the active segments as a member sends its contributions: every owner's first segment
    before any owner's second, beginning with the owner that follows it, so that not all send to the
    same one at once."""
    count, members = _segments(plan), [member.peer for member in plan.members]
    mine = members.index(me)

    def turn(segment: int) -> tuple[int, int]:
        return segment % count, (segment // count - mine - 1) % len(members)

    return sorted(active(plan), key=turn)


def reduced_key(sender: PeerId, message: Reduced) -> PayloadKey:
    """Return the key of a broadcast; with its sender, so that no other can replace its bytes."""
    return PayloadKey(message.step, "reduced", message.segment, message.attempt, sender)


def blame_impostor(sender: PeerId) -> Penalise:
    """Blame a peer that broadcasts a segment of another's shard."""
    return Penalise(sender, "reduced-shard-of-another", 30)


def split(
    reports: Mapping[PeerId, Report], members: Sequence[PeerId], per_step: int
) -> list[PlanMember]:
    """Assign every id to one member: the one that has it and was done last.

    That member is the slow one, and subtracting a microbatch is work. The others subtract it, even
    if they finish it only after the plan was made (a late backup).

    Args:
        reports: in the order in which their ledgers changed.
        members: the plan's members.
        per_step: M, microbatches per step.
    """
    taken, counted = 0, dict[PeerId, int]()
    for peer in [peer for peer in reversed(list(reports)) if peer in members]:
        counted[peer] = reports[peer].bits & ~taken
        taken |= counted[peer]
    size = (per_step + 7) // 8
    return [PlanMember(peer, counted[peer].to_bytes(size, "little")) for peer in members]


def counts_all_once(members: Sequence[PlanMember], per_step: int) -> bool:
    """Return whether every microbatch of the step is counted for exactly one member (I1)."""
    union, counted = 0, 0
    for member in members:
        bits = int.from_bytes(member.counted, "little")
        union, counted = union | bits, counted + bits.bit_count()
    return counted == per_step and union == (1 << per_step) - 1


def most_common(states: list[bytes], ours: bytes) -> bytes:
    """Return the state that most members are in, of several ours; empty where none is known."""
    known = Counter(state for state in states if state)
    return max(known, key=lambda state: (known[state], state == ours, state), default=b"")


def _segments(plan: Plan) -> int:
    """Return into how many segments each member's shard is cut."""
    return (len(plan.bounds) - 1) // len(plan.members)
