"""Buckets: groups of four and more within a plan, whose sums alone become known.

A sum of all contributions hides each of them, and hides who poisons it. So where a run asks for it,
the members of a plan are dealt into buckets: the sum of each bucket is secret, and a robust rule
compares the buckets (``client/compute/bucket_clipping.py``). With fewer than two buckets of four
there is one sum of all.

The deal follows from the state that the step begins with. Nobody knows that before the last sum was
opened, and nobody can change it then; so nobody chooses its company, unless it leads: a leader
may leave one replica out (``machine.py``).
"""

from __future__ import annotations

from typing import Final

from protocol.ids import rank
from protocol.wire.messages import Plan

BUCKET: Final = 4
"""Members of a bucket, at least: three others hide a contribution."""


def buckets_of(plan: Plan) -> tuple[int, ...]:
    """Return the bucket of each member, in the plan's order; empty if there is one sum of all.

    Buckets differ by one member at most; one that is named twice counts once.
    """
    of = plan.stage, plan.step, plan.state.hex()
    ranks = {member.peer: rank("bucket", *of, member.peer) for member in plan.members}
    count = len(ranks) // BUCKET
    if count < 2:
        return ()
    order = sorted(ranks, key=ranks.__getitem__)
    dealt = {peer: turn % count for turn, peer in enumerate(order)}
    return tuple(dealt[member.peer] for member in plan.members)
