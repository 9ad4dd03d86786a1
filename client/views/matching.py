"""Why our stages are ours: what we hold, whether a move would pay, and who decides, in plain words.

What each stage lacks is in the table of stages; what was proposed and rejected is in the log. Pure.
"""

from collections.abc import Iterator, Sequence

from client.control.snapshot import MatchesView, SeatView
from client.views import status, words
from client.views.record import Record
from client.views.span import Box, Line, Tone, cut, line
from client.views.text import clean, wrap

WAITING = (
    "Your stage is chosen as soon as this machine has been measured, which takes some seconds."
)
_STATES = {
    "fetching": "its numbers are being copied to this machine",
    "held": "it is kept for you, and training begins when every stage has somebody",
    "proposed": "this machine has offered to take it, and waits for the answer",
    "serving": "it is being handed over",
}
Said = tuple[str, Tone]


def sentences(record: Record, box: Box) -> list[Line]:
    """Return sentences about our stages, the most important first."""
    now = record.snapshot
    told: list[Said] = [(WAITING, "muted")]
    if now is not None and not now.seats and (why := status.without_stage(now)):
        paused = f" ({status.reason(now)})" if now.paused else ""
        told = [(f"You hold {why}{paused}.", "accent")]
    elif now is not None and now.matches is not None:
        told = [*_mine(now.seats, now.matches), *_moves(now.seats, now.matches)]
    lines: list[Line] = []
    for text, tone in told:
        for number, part in enumerate(wrap(clean(text), max(1, box.width - 2), 4)):
            lines.append(line("  " if number else "· ", (part, tone)))
    return [cut(one, box.width) for one in lines[: box.height]]


def _mine(seats: Sequence[SeatView], found: MatchesView) -> Iterator[Said]:
    """Say what we hold."""
    for seat in sorted(seats, key=lambda seat: seat.seat):
        if seat.state == "serving" and not seat.waits_for:
            verb = "hold" if seat.seat == 0 else "also help with"
            yield f"You {verb} stage {seat.stage}.", "good"
        else:
            yield _yours(seat.stage, seat.state), "accent"
    if not seats and found.asked is None:
        yield "You hold no stage yet; one is being chosen for you.", "accent"
    elif not seats:
        yield _yours(found.asked, found.state), "accent"
    if sum(seat.state == "serving" for seat in seats) > 1:
        yield (
            "You hold a second stage because your machine has memory for both: so the faster "
            "stage waits less for the slower one.",
            "plain",
        )


def _yours(stage: int | None, state: str) -> str:
    return f"Stage {stage} is yours: {_STATES.get(state, clean(state))}."


def _moves(seats: Sequence[SeatView], found: MatchesView) -> Iterator[Said]:
    """Say whether anybody should move, and who decides."""
    if found.paying_moves:
        move = found.paying_moves[0]
        yield (
            f"A move from stage {move.home} to stage {move.to} would speed the training up; it is "
            "made at the next check, one at a time.",
            "accent",
        )
    elif found.stages and all(one.shared_level for one in found.stages):
        yield "Nobody could move to another stage and make the training faster.", "good"
    ours = {seat.stage for seat in seats}
    others = (one for one in found.stages if one.stage not in ours and (one.stay or one.obstacle))
    if (other := next(others, None)) is not None:
        why = f"take you, but it would not help the training ({other.stay})"
        if other.obstacle:
            why = f"not take you, for others fit it better ({other.obstacle})"
        yield f"Stage {other.stage} would {why}.", "muted"
    decides = words.listed(list(map(str, found.decides)))
    noun = "stage" if len(found.decides) == 1 else "stages"
    yield (
        "For each stage one volunteer, which changes, compares who would speed the training up "
        f"most and decides.{f' At the moment you do for {noun} {decides}.' if decides else ''}",
        "muted",
    )
