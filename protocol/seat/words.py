"""What a seat is doing, in words for whoever runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.ids import short
from protocol.view import SwarmView

if TYPE_CHECKING:
    from protocol.seat.seat import Seat


def in_words(seat: Seat, view: SwarmView) -> str:
    """Return one sentence about a seat in a swarm that looks like this."""
    stage = f"stage {seat.place.stage}"
    if not seat.serving:
        return f"{stage}: catching up at version {seat.step}"
    if seat.finished:
        return f"{stage}: the run is complete"
    if missing := view.empty_stages():
        return f"waiting for a volunteer in stage {', '.join(map(str, missing))}"
    counted = f"{len(seat.pipeline.done())}/{seat.place.per_step} counted here"
    led_by = short(seat.current_leader() or "?")
    return f"{stage}, {counted}; {seat.member.why()}; led by {led_by}"
