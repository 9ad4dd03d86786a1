"""The head of the Swarm tab: the model, the progress, and the check of all counts. Pure."""

from __future__ import annotations

from client.control.snapshot import Snapshot
from client.quantities import plural
from client.views import words
from client.views.plot import progress, spark
from client.views.record import Record
from client.views.span import Box, Line, Tone, cut, line, pair
from client.views.text import clean, wrap

SAMPLE_MARK = " ▸ "
"""Between a prompt and what the model has written."""


def swarm_head(record: Record, box: Box) -> list[Line]:
    """Return a few lines about the run."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    share = now.step / now.steps if now.steps else 0.0
    cells = max(10, min(60, box.width - 58))
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
                (_rest(now), "muted"),
            ),
        ),
        *_amended(now),
        *_given_up(now),
        pair(
            "speed",
            line(
                f"{words.count(now.tokens_per_s)} tokens/s ",
                (spark(list(record.speeds), min(40, cells)), "second"),
            ),
        ),
        pair(
            "people",
            f"{plural(volunteers, 'volunteer')} for {plural(len(now.stages), 'stage')}",
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


def _amended(now: Snapshot) -> list[Line]:
    """Return what the founder has changed last, if anything."""
    if (number := now.contradicted_amendment) is not None:
        said = f"the founder has signed two different amendments {number}: neither counts"
        return [pair("amended", line((said, "warn")))]
    if not now.amendments:
        return []
    newest = now.amendments[-1]
    when = "not agreed on yet"
    if newest.from_step is not None:
        when = f"from step {newest.from_step} on"
    return [pair("amended", line(clean(newest.words, 200), (f" ({when})", "muted")))]


def _given_up(now: Snapshot) -> list[Line]:
    """Return what was given up where two lines of the run have met, if anything."""
    if now.given_up is None:
        return []
    return [pair("given up", line((clean(now.given_up.words, 200), "warn")))]


def purpose_lines(now: Snapshot, cells: int) -> list[Line]:
    """Return what the model is for in at most two lines of ``cells``; none if that is not said."""
    parts = wrap(clean(now.purpose), max(1, cells - 10), 2)
    return [pair("" if number else "for", part) for number, part in enumerate(parts)]


def samples(record: Record, box: Box) -> list[Line]:
    """Return what this machine let the newest version write, two lines or more for each prompt."""
    found = record.snapshot.samples if record.snapshot else []
    if not found:
        return []
    each = max(1, (box.height - 1) // len(found))
    lines = [line((f"after step {words.count(found[0].version)}, likeliest tokens", "muted"))]
    for one in found:
        prompt, text = clean(one.prompt, 400), clean(one.text, 4000)
        parts = wrap(f"{prompt}{SAMPLE_MARK}{text}", box.width, each)
        lines += [line((part, "plain")) for part in parts]
    return [cut(found_line, box.width) for found_line in lines[: box.height]]


def samples_height(record: Record, room: int) -> int:
    """Return the lines that the samples take of ``room``; 0: there are none."""
    number = len(record.snapshot.samples) if record.snapshot else 0
    return max(2, min(room // 2, 1 + 2 * number)) if number else 0


def _rest(now: Snapshot) -> str:
    return "" if now.eta_s is None else f"   about {words.about(now.eta_s)} left"
