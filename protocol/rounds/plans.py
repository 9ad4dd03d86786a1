"""What follows from a plan: its shards and their owners, and what a round is about to apply."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter

from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.pipeline.effects import PayloadKey
from protocol.wire.messages import Plan, Reduced


def plan_digest(leader: PeerId, plan: Plan, digests: list[bytes], sq_norms: list[float]) -> bytes:
    """Return the BLAKE2b-256 that stands for everything a round is about to apply."""
    summary = hashlib.blake2b(digest_size=32)
    summary.update(f"{leader}|{plan.stage}|{plan.step}|{plan.attempt}".encode())
    for digest, sq_norm in zip(digests, sq_norms, strict=True):
        summary.update(digest + struct.pack(">d", sq_norm))
    return summary.digest()


def active_shards(plan: Plan) -> list[int]:
    """Return the indices of shards that have elements."""
    return [i for i in range(len(plan.members)) if plan.bounds[i + 1] > plan.bounds[i]]


def owner(plan: Plan, shard: int) -> str | None:
    """Return who reduces a shard, None if the plan has no such shard."""
    return plan.members[shard].peer if shard < len(plan.members) else None


def reduced_key(sender: PeerId, message: Reduced) -> PayloadKey:
    """Return the key of a broadcast; with its sender, so that no other can replace its bytes."""
    return PayloadKey(message.step, "reduced", message.shard, message.attempt, sender)


def blame_impostor(sender: PeerId) -> Penalise:
    """Blame who broadcasts a shard that is not its own."""
    return Penalise(sender, "reduced-shard-of-another", 30)


def most_common(states: list[bytes]) -> bytes:
    """Return the state that most members are in; empty where none is known."""
    known = Counter(state for state in states if state)
    return max(known, key=lambda state: (known[state], state), default=b"")
