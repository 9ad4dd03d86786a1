"""Trust: our audits, who is proven and who was expelled, and why. Pure."""

from collections.abc import Iterator

from client.control.snapshot import Snapshot, TrustView
from client.views import status, words
from client.views.record import Record
from client.views.span import Box, Line, Tone, line

LABELS = 11
MOST_LINES = 3
"""Of one reason."""


def tone_of(standing: str) -> Tone:
    """Return the colour of a standing."""
    return status.STANDINGS.get(standing, ("", "muted"))[1]


def summary(record: Record, box: Box) -> list[Line]:
    """Return our audits, how many members are trusted, and who was expelled last; nothing in a
    run in which there is nothing to say of it."""
    facts = status.trust(record.snapshot) if record.snapshot else ()
    return status.lines_of(facts, box, LABELS, most=MOST_LINES)


def of_member(now: Snapshot, peer: str, known: TrustView | None) -> Iterator[status.Fact]:
    """Yield why a member is trusted, what its audits came to, and who has invited it."""
    if peer == now.peer:
        return
    if known is None:
        yield "trust", line(("none of its work is known here yet", "muted"))
        return
    told = f"{status.STANDINGS[known.standing][0]}: {known.words}"
    yield "trust", line((told, tone_of(known.standing)))
    if known.audits.drawn:
        found = f"{known.audits.drawn} of its contributions: {status.audit_results(known.audits)}"
        yield "our audits", line((found, "bad" if known.audits.disagree else "good"))
    if known.fault:
        yield "", line(known.fault)
    if known.invited_by:
        yield "invited by", line(_invited(known.invited_by))
    for out in now.expelled:
        if out.peer == peer:
            yield "evidence", line((status.where_to_see(out), "muted"))


def _invited(above: list[str]) -> str:
    """Say who answers for a member: its inviter, and the branch of the founder's tree."""
    inviter = words.short(above[-1])
    if len(above) == 1:
        return f"{inviter}, the founder"
    branch = f", in the branch of {words.short(above[1])}" if len(above) > 2 else ""
    return f"{inviter}, {len(above)} invitations from the founder{branch}"
