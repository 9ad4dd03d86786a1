"""Trust: today's audits, who is proven and who was expelled, and why. Pure."""

from __future__ import annotations

from collections import Counter

from client.control.snapshot import Snapshot, TrustView
from client.control.trust_words import audit_results, audits_today, next_step, not_judged
from client.views import words
from client.views.record import Record
from client.views.span import Box, Line, Span, Tone, cut, pair
from client.views.text import clean, wrap

LABELS = 11
MOST_EXPELLED = 3
MOST_LINES = 3
"""Of one reason."""
_TONES: dict[str, Tone] = {
    "proven": "good",
    "unproven": "muted",
    "probation": "accent",
    "aside": "warn",
    "charged": "warn",
    "expelled": "bad",
}
_WORDS = {
    "unproven": "not proven yet",
    "probation": "on probation",
    "aside": "set aside",
}


def tone_of(standing: str) -> Tone:
    """Return the colour of a standing."""
    return _TONES.get(standing, "muted")


def summary(record: Record, box: Box) -> list[Line]:
    """Return today's audits, how many members are trusted, and who was expelled last; nothing in a
    run in which there is nothing to say of it."""
    now = record.snapshot
    if now is None or (now.audits is None and not now.expelled):
        return []
    lines: list[Line] = []
    if now.audits is not None:
        tone: Tone = "bad" if now.audits.today.disagree else "plain"
        lines += _said("audits", audits_today(now.audits), box, tone)
    if now.trust:
        lines.append(pair("members", _members(now), labels=LABELS))
    shown = now.expelled[-MOST_EXPELLED:]
    for number, out in enumerate(reversed(shown)):
        lines += _said("expelled" if number == 0 else "", out.reason, box, "bad")
    for step in dict.fromkeys(map(next_step, shown)):
        lines += _said("evidence", step, box, "muted")
    if small := not_judged(now):
        lines += _said("too few", small, box, "warn")
    return [cut(found, box.width) for found in lines[: box.height]]


def details(now: Snapshot | None, peer: str, known: TrustView | None, box: Box) -> list[Line]:
    """Return why a member is trusted, what its audits came to, and who has invited it."""
    if now is None or peer == now.peer:
        return []
    if known is None:
        return _said("trust", "it has nothing to its name yet", box, "muted")
    told = f"{_WORDS.get(known.standing, known.standing)}: {known.words}"
    lines = _said("trust", told, box, tone_of(known.standing))
    if known.audits.drawn:
        found = f"{known.audits.drawn} of its contributions: {audit_results(known.audits)}"
        lines += _said("our audits", found, box, "bad" if known.audits.disagree else "good")
    if known.fault:
        lines += _said("", known.fault, box, "plain")
    if known.invited_by:
        lines += _said("invited by", _invited(known.invited_by), box, "plain")
    steps = [next_step(out) for out in now.expelled if out.peer == peer]
    return [*lines, *(found for step in steps for found in _said("evidence", step, box, "muted"))]


def _members(now: Snapshot) -> Line:
    """Return how many members have each standing."""
    counts = Counter[str](one.standing for one in now.trust)
    pieces: list[Span] = []
    for standing, tone in _TONES.items():
        if counts[standing]:
            comma = ", " if pieces else ""
            pieces.append(Span(f"{comma}{counts[standing]} {_WORDS.get(standing, standing)}", tone))
    return tuple(pieces)


def _invited(above: list[str]) -> str:
    """Say who answers for a member: its inviter, and the branch of the founder's tree."""
    inviter = words.short(above[-1])
    if len(above) == 1:
        return f"{inviter}, the founder"
    branch = f", in the branch of {words.short(above[1])}" if len(above) > 2 else ""
    return f"{inviter}, {len(above)} invitations from the founder{branch}"


def _said(label: str, text: str, box: Box, tone: Tone) -> list[Line]:
    parts = wrap(clean(text), max(1, box.width - LABELS), MOST_LINES)
    return [
        pair(label if number == 0 else "", part, tone, LABELS) for number, part in enumerate(parts)
    ]
