"""Trust: our audits, who is proven and who was expelled, and why. Pure."""

from __future__ import annotations

from client.control.snapshot import Snapshot, TrustView
from client.control.trust_words import audit_results, next_step
from client.views import status, words
from client.views.record import Record
from client.views.span import Box, Line, Tone, pair
from client.views.text import clean, wrap

LABELS = 11
MOST_LINES = 3
"""Of one reason."""


def tone_of(standing: str) -> Tone:
    """Return the colour of a standing."""
    return status.STANDINGS.get(standing, ("", "muted"))[1]


def summary(record: Record, box: Box) -> list[Line]:
    """Return our audits, how many members are trusted, and who was expelled last; nothing in a
    run in which there is nothing to say of it."""
    now = record.snapshot
    if now is None or (now.audits is None and not now.expelled):
        return []
    return status.lines_of(status.trust(now), box, LABELS, most=MOST_LINES)


def details(now: Snapshot | None, peer: str, known: TrustView | None, box: Box) -> list[Line]:
    """Return why a member is trusted, what its audits came to, and who has invited it."""
    if now is None or peer == now.peer:
        return []
    if known is None:
        return _said("trust", "it has nothing to its name yet", box, "muted")
    told = f"{status.STANDINGS[known.standing][0]}: {known.words}"
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
