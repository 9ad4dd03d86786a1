"""The head of the Swarm tab: the model, the progress, and the check of all counts. Pure."""

from itertools import islice

from client.quantities import plural
from client.views import status
from client.views.plot import progress, spark
from client.views.record import Record
from client.views.span import Box, Line, Span, line


def swarm_head(record: Record, box: Box) -> list[Line]:
    """Return what is known of the run as a whole."""
    now = record.snapshot
    if now is None:
        return [line(("not connected yet", "muted"))]
    volunteers = len({replica.peer for stage in now.stages for replica in stage.replicas})
    people = f"{plural(volunteers, 'volunteer')} for {plural(len(now.stages), 'stage')}"
    share = now.step / now.steps if now.steps else 0.0
    bar = progress(share, max(10, min(60, box.width - 50)))
    past = spark(list(record.speeds), max(10, min(40, box.width - 50)))
    beside: dict[str, Line] = {
        "progress": (Span(" "), *bar, Span(f" {100 * share:.1f} %")),
        "speed": line(" ", (past, "second")),
    }
    facts = [
        (label, (*said, *beside.get(label, ())))
        for label, said in status.run(now)
        if label != "next"
    ]
    facts += [("people", line(people)), *islice(status.recovery(now), 1)]
    return status.lines_of(facts, box, most=2)
