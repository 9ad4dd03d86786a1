"""What the silence of a replica that has work of ours means. Decides; sends nothing."""

from __future__ import annotations

from typing import Literal

from protocol.ids import short
from protocol.pipeline.holding import Delivery, Holder

OVERSLEPT_S = 1.0
"""A deadline noticed so late means that we slept: nobody's silence is proven."""
PATIENCE = 4
"""How often, and once more per stage behind it, an answer is enough of who brings nothing."""
SILENT_POINTS = 2
"""What a missed deadline costs its peer's reputation: a habit adds up, a bad moment fades."""
WORKING_TIMES = 3
"""Who brings other gradients is waited for so many times as long for this one."""

Verdict = Literal["ask", "silent", "stuck"]


def judge(holder: Holder, brought_at: float, patience: int, now: float) -> Verdict:
    """Say what to do about a holder whose deadline has passed: ask whether it is there, or give it
    up because it did not answer, or because it answers and brings nothing.

    Args:
        brought_at: when a gradient came from it last, in monotonic seconds.
        patience: how often an answer is good enough.
    """
    if holder.asked_at is not None:
        slept = holder.deadline is not None and now > holder.deadline + OVERSLEPT_S
        return "ask" if slept else "silent"
    works = brought_at > (holder.held_since or holder.sent_at)
    return "stuck" if holder.answers >= patience * (WORKING_TIMES if works else 1) else "ask"


def late_words(delivery: Delivery, holder: Holder) -> str:
    """Say who is late with what."""
    what = "receipt" if holder.held_since is None else "gradient"
    how = "although it answers" if holder.asked_at is None else "and it is silent"
    who = short(holder.peer)
    return f"microbatch {delivery.microbatch}: no {what} from {who} in time, {how}"
