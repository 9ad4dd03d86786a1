"""The head of the Swarm tab: the model, the progress, and the check of all counts. Pure."""

from __future__ import annotations

from itertools import islice

from client.quantities import plural
from client.views import status, words
from client.views.plot import progress, spark
from client.views.record import Record
from client.views.span import Box, Line, Span, cut, line
from client.views.status import SAMPLE_MARK
from client.views.text import clean, wrap


def swarm_head(record: Record, box: Box) -> list[Line]:
    """Return what is known of the run as a whole."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    facts = dict(status.run(now))
    volunteers = len({replica.peer for stage in now.stages for replica in stage.replicas})
    people = f"{plural(volunteers, 'volunteer')} for {plural(len(now.stages), 'stage')}"
    past = spark(list(record.speeds), max(10, min(40, box.width - 50)))
    share = now.step / now.steps if now.steps else 0.0
    bar = progress(share, max(10, min(60, box.width - 50)))
    facts["progress"] += (Span(" "), *bar, Span(f" {100 * share:.1f} %"))
    if "speed" in facts:
        facts["speed"] += line(" ", (past, "second"))
    facts = {name: value for name, value in facts.items() if name not in ("sample", "next")}
    facts |= {"people": line(people), **dict(islice(status.recovery(now), 1))}
    return status.lines_of(facts.items(), box, most=2)


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
