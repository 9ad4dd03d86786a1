"""A replica that takes work and returns nothing, while its siblings return theirs."""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.pipeline.stalling import LEAST_S, MOST_SLOWER, TIMES_A_SIBLING, stalling

IDLE, BUSY = PeerId("idle"), PeerId("busy")
USUAL = {IDLE: 1.0, BUSY: 1.0}


def found(now: float, **how: object) -> list[PeerId]:
    since = {IDLE: 10.0, BUSY: 10.0}
    brought = {BUSY: 12.0}
    return [peer for peer, _ in stalling(since, brought, USUAL, now, **how)]  # type: ignore[arg-type]


def test_who_brings_nothing_while_a_sibling_does_stalls() -> None:
    limit = TIMES_A_SIBLING * MOST_SLOWER
    assert found(10 + limit - 0.1) == []
    assert found(10 + limit) == [IDLE]


def test_who_says_that_it_is_fast_has_less_time() -> None:
    assert found(10 + TIMES_A_SIBLING, slower={IDLE: 1.0}) == [IDLE]


def test_where_nobody_brings_anything_nobody_stalls() -> None:
    assert stalling({IDLE: 10.0, BUSY: 10.0}, {}, USUAL, 1000.0) == []
    assert {p for p, _ in stalling({IDLE: 10.0, BUSY: 10.0}, {}, USUAL, 1e3, shown=False)} == {
        IDLE,
        BUSY,
    }, "unless that is not asked for"


def test_an_only_replica_has_nobody_to_be_held_against() -> None:
    assert stalling({IDLE: 10.0}, {}, {IDLE: 1.0}, 1000.0) == []


def test_time_that_proves_nothing_does_not_count() -> None:
    limit = TIMES_A_SIBLING * MOST_SLOWER
    assert found(10 + limit, fair_since=11.5) == []
    assert found(11.5 + limit, fair_since=11.5) == [IDLE]


def test_quick_siblings_leave_the_least_time() -> None:
    quick = {IDLE: 0.01, BUSY: 0.01}
    (stalls,) = stalling({IDLE: 10.0}, {BUSY: 11.0}, quick, 10.0 + LEAST_S)
    assert stalls == (IDLE, LEAST_S)
