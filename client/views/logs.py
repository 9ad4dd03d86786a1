"""The Logs tab: every event we have, by level and words. Pure."""

from client.control.snapshot import EventView
from client.events import at_least
from client.quantities import plural
from client.views import words
from client.views.dashboard import event_line
from client.views.record import Record
from client.views.span import Box, Line, Row, cut, line, pair
from client.views.text import clean, wrap


def chosen(record: Record, level: str, text: str) -> list[EventView]:
    """Return the events of a level and above that contain every word of ``text``."""
    wanted = text.lower().split()
    return [
        event
        for event in record.events
        if at_least(event.level, level)
        and all(part in f"{event.words} {event.topic} {event.kind}".lower() for part in wanted)
    ]


def log_rows(record: Record, box: Box, level: str, text: str) -> list[Row]:
    """Return one row per event of a ``level`` and above that contains every word of ``text``."""
    found = chosen(record, level, text)
    if not found:
        quiet = "nothing here yet" if not text else f"nothing contains {text!r}"
        return [Row("none", (line((quiet, "muted")),))]
    wide, names = box.width >= 90, record.names
    return [Row(str(e.seq), (cut(event_line(e, names, topic=wide), box.width),)) for e in found]


def log_title(record: Record, level: str, text: str) -> str:
    """Return the title of the frame."""
    number = len(chosen(record, level, text))
    missed = f", {record.missed} missed" if record.missed else ""
    filtered = " that match" if text else ""
    return f"{plural(number, 'event')}{filtered}, {level} and above, newest last{missed}"


def event_details(record: Record, seq: str, box: Box) -> list[Line]:
    """Return one event in full."""
    event = next((e for e in record.events if str(e.seq) == seq), None)
    if event is None:
        return [line(("it is forgotten", "muted"))]
    facts = {name: value for name, value in event.data.items() if value not in ("", [], None)}
    told = words.with_names(event.words, event.members, record.names)
    lines = [
        pair("time", f"{words.date(event.time)}, {words.clock(event.time)}"),
        pair("level", event.level),
        pair("topic", clean(event.topic)),
        pair("kind", clean(event.kind)),
        *(pair(clean(name, 20), clean(value)) for name, value in sorted(facts.items())[:12]),
        (),
        *(line(part) for part in wrap(clean(told, 4000), box.width, 20)),
    ]
    return [cut(found, box.width) for found in lines]
