"""Interprets the silence of a replica that holds work of ours. Decides; sends nothing."""

from __future__ import annotations

from typing import Literal

from protocol.ids import short
from protocol.pipeline.holding import Delivery, Holder

OVERSLEPT_S = 1.0
"""A deadline noticed so late means that our process was suspended: no silence is proven."""
PATIENCE = 4
"""Answers that are accepted in place of a gradient, and one more per stage behind the holder."""
SILENT_POINTS = 2
"""Penalty for a missed deadline; repeated ones add up, a single one fades."""
WORKING_TIMES = 3
"""A replica that brings other gradients gets this many times as long for this one."""

Verdict = Literal["ask", "silent", "stuck"]


def judge(holder: Holder, brought_at: float, patience: int, now: float) -> Verdict:
    """Decide about a holder whose deadline has passed.

    Ask it, or give it up because it did not answer, or because it answers and brings nothing.

    Args:
        holder: the holder.
        brought_at: when it last brought a gradient, monotonic seconds.
        patience: number of answers that are accepted instead of a gradient.
        now: monotonic seconds.
    """
    if holder.asked_at is not None:
        slept = holder.deadline is not None and now > holder.deadline + OVERSLEPT_S
        return "ask" if slept else "silent"
    works = brought_at > (holder.held_since or holder.sent_at)
    return "stuck" if holder.answers >= patience * (WORKING_TIMES if works else 1) else "ask"


def late_words(delivery: Delivery, holder: Holder) -> str:
    """Return the message that names the late replica and what it owes."""
    what = "receipt" if holder.held_since is None else "gradient"
    how = "although it answers" if holder.asked_at is None else "and it is silent"
    who = short(holder.peer)
    return f"microbatch {delivery.microbatch}: no {what} from {who} in time, {how}"
