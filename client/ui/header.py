"""The lines that are always on the screen: progress, state and its reason, the costs of leaving,
the last error. Pure."""

from client.control.snapshot import WHEN_DONE, Snapshot
from client.quantities import plural
from client.ui.source.news import Link
from client.views import status, words
from client.views.plot import progress
from client.views.record import Record
from client.views.span import Box, Line, Span, Tone, cut, line, line_width, spread
from client.views.text import clean, wrap

GAP = Span("  ")
_LINKS: dict[str, tuple[str, Tone]] = {
    "connecting": ("CONNECTING", "accent"),
    "lost": ("NO CONNECTION", "bad"),
    "ended": ("ENDED", "warn"),
}


def header(record: Record, link: Link, box: Box) -> list[Line]:
    """Return four lines; two while no node answers."""
    box = Box(box.width - 1, box.height)
    now = record.snapshot
    if now is None:
        wait = "it may still be starting; this view shows it as soon as it answers"
        return [_name(None), _link(link) or line(""), line(("   " + wait, "muted"))]
    if link.gone:
        share = f" step {words.count(now.step)} of {words.count(now.steps)}"
        return [(*_name(now), Span(share, "muted")), cut(_link(link), box.width)]
    top = _title(now, box)
    right = _traffic(record)
    if line_width(top) + line_width(right) + 4 > box.width:
        right = right[-1:]
    state, leave, error = _state(now, link), _leaving(now), _error(record)
    first = spread(top, right, box.width)
    if line_width(state) > box.width and not now.last_error:
        return [first, *_two_lines(state, box.width), cut(leave, box.width)]
    return [first, *(cut(found, box.width) for found in (state, leave, error))]


def _two_lines(state: Line, cells: int) -> list[Line]:
    """Return the state with its reason, the last piece, on two lines."""
    *before, said = state
    indent = line_width(tuple(before))
    first, *rest = wrap(said.text, cells - indent, 2) or [""]
    return [
        (*before, Span(first, said.tone)),
        *((Span(" " * indent), Span(text, said.tone)) for text in rest),
    ]


def _name(now: Snapshot | None) -> Line:
    name = (clean(now.swarm_name, 40),) if now else ()
    return line((" volunteer ", "strong"), *((f" {text} ", "accent") for text in name))


def _title(now: Snapshot, box: Box) -> Line:
    share = now.step / now.steps if now.steps else 0.0
    parts: list[Span] = [*_name(now), Span(f" step {words.count(now.step)}")]
    parts.append(Span(f" of {words.count(now.steps)} ", "muted"))
    if box.width >= 109:
        parts += [*progress(share, 20), Span(" ")]
    parts += [Span(f"{100 * share:3.0f} %", "muted"), GAP]
    if now.loss is not None:
        parts += [Span("loss ", "muted"), Span(f"{now.loss:.3f}", "strong"), GAP]
    if now.state != "done":
        parts += [Span(f"{words.count(now.tokens_per_s)}", "strong"), Span(" tokens/s", "muted")]
    return tuple(parts)


def _traffic(record: Record) -> Line:
    rates, now = record.rates, record.snapshot
    links = plural(now.network.links, "link") if now else ""
    return line(
        (f"{links}  ", "muted"),
        ("▲ ", "second"),
        f"{words.per_s(rates.sent):>11}  ",
        ("▼ ", "accent"),
        f"{words.per_s(rates.received):>11}  ",
        (words.clock(record.time), "muted"),
    )


def _state(now: Snapshot, link: Link) -> Line:
    if shown := _link(link):
        return shown
    word, tone = words.state_word(now.state)
    return line((f" ● {word} ", tone), (status.reason(now), "plain"))


def _link(link: Link) -> Line:
    if link.state == "live":
        return ()
    word, tone = _LINKS[link.state]
    return line((f" ● {word} ", tone), (link.words, "muted"))


def _leaving(now: Snapshot) -> Line:
    if now.state == "done":
        return line(("   what next     ", "muted"), WHEN_DONE)
    when = "afterwards  " if now.state == "stopping" else "if you leave"
    return line((f"   {when}  ", "muted"), status.drain_words(now))


def _error(record: Record) -> Line:
    now = record.snapshot
    if now is None or not now.last_error:
        return line(("   last error  ", "muted"), ("none", "muted"))
    at = now.last_error_at
    age = f"{words.duration(record.time - at)} ago " if at else ""
    return line(("   last error  ", "muted"), (age, "muted"), (now.last_error, "bad"))
