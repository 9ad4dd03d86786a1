"""The head of the Swarm tab: the model, the progress, and the check of all counts. Pure."""

from __future__ import annotations

from client.control.snapshot import Snapshot
from client.ui.model import words
from client.ui.model.plot import progress, spark
from client.ui.model.record import Record
from client.ui.model.span import Box, Line, Tone, cut, line, pair
from client.ui.text import clean, wrap


def swarm_head(record: Record, box: Box) -> list[Line]:
    """Return a few lines about the run."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    share = now.step / now.steps if now.steps else 0.0
    cells = max(10, min(60, box.width - 50))
    count = now.counters
    good: Tone = "good" if not count.doubled_microbatches else "bad"
    volunteers = len({replica.peer for stage in now.stages for replica in stage.replicas})
    lines = [
        pair("swarm", line((clean(now.swarm_name, 60), "strong"), (f" {now.swarm[:12]}", "muted"))),
        *purpose_lines(now, box.width),
        pair(
            "progress",
            line(
                f"step {now.step} of {now.steps} ",
                *progress(share, cells),
                f" {100 * share:.1f} %",
                (_rest(record), "muted"),
            ),
        ),
        pair(
            "speed",
            line(
                f"{words.count(now.tokens_per_s)} tokens/s ",
                (spark(list(record.speeds), min(40, cells)), "second"),
            ),
        ),
        pair(
            "people",
            f"{words.plural(volunteers, 'volunteer')} for {words.plural(len(now.stages), 'stage')}",
        ),
        pair(
            "exactness",
            line(
                (f"{words.count(count.doubled_microbatches)} microbatches counted twice", good),
                (" (must stay 0)", "muted"),
                f", {words.count(count.rounds_committed)}", (" rounds closed here", "muted"),
            ),
        ),
    ]  # fmt: skip
    return [cut(found, box.width) for found in lines[: box.height]]


def purpose_lines(now: Snapshot, cells: int) -> list[Line]:
    """Return what the model is for in at most two lines of ``cells``; none if that is not said."""
    parts = wrap(clean(now.purpose), max(1, cells - 10), 2)
    return [pair("" if number else "for", part) for number, part in enumerate(parts)]


def remaining_s(record: Record) -> float | None:
    """Return the seconds to the last step at the pace of the last steps seen, None if unknown."""
    now, points = record.snapshot, record.curve()[-40:]
    if now is None or len(points) < 3 or now.state != "training":
        return None
    steps, span = points[-1].step - points[0].step, points[-1].time - points[0].time
    left = now.steps - now.step
    return left * span / steps if steps > 0 and span > 0 and left > 0 else None


def _rest(record: Record) -> str:
    left = remaining_s(record)
    return "" if left is None else f"   about {words.duration(left)} left"
