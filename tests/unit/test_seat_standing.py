"""Whom a seat sets aside, and how long its heartbeats say so."""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.pipeline.place import Place
from protocol.seat.standing import DISPUTE_S, Standing
from protocol.view import Replica, SwarmView

FIRST, OURS, SIBLING = PeerId("first"), PeerId("ours"), PeerId("sibling")
HEARTBEAT_S = 1.0


def view(version: int, ours: Replica | None = None) -> SwarmView:
    held = ours or Replica(OURS, version, serving=True)
    return SwarmView(
        ((Replica(FIRST, version, serving=True),), (held, Replica(SIBLING, 7, serving=True)))
    )


def test_a_sibling_that_was_set_aside_is_named_until_the_stage_goes_on_without_it() -> None:
    standing = Standing(Place(OURS, 1, 2, 8), None)
    standing.observe(view(7), [SIBLING], 0.0)
    assert standing.accused() == []
    standing.observe(view(7), [SIBLING], DISPUTE_S)
    assert standing.is_aside(SIBLING)
    standing.observe(view(7), [], DISPUTE_S + HEARTBEAT_S)
    assert standing.accused() == [SIBLING]
    standing.observe(view(8), [], DISPUTE_S + 2 * HEARTBEAT_S)
    assert standing.is_aside(SIBLING)
    assert standing.accused() == []


def test_the_stage_beside_hears_of_a_dispute_however_late_a_heartbeat_is() -> None:
    """The accuser decides for itself after as long as others need to; it has to say so still."""
    ours = Standing(Place(OURS, 1, 2, 8), None)
    beside = Standing(Place(FIRST, 0, 2, 8), None)
    claims, now = [SIBLING], 0.3  # between two heartbeats
    ours.observe(view(7), claims, now)
    for beat in range(1, 4):
        at = beat * HEARTBEAT_S
        ours.observe(view(7), [] if ours.is_aside(SIBLING) else claims, at)
        named = (*([] if ours.is_aside(SIBLING) else claims), *ours.accused())
        beside.observe(view(7, Replica(OURS, 7, serving=True, missing=named)), [], at + 0.01)
    assert ours.is_aside(SIBLING)
    assert beside.is_aside(SIBLING) or beside.is_aside(OURS)
