"""Who is told something, when, and when again."""

from __future__ import annotations

from protocol.seat.telling import AGAIN_S, Telling


def test_each_is_told_once_and_again_later() -> None:
    made = Telling[str]()
    assert made.due("ab", "news", 0.0) == ["a", "b"]
    assert made.next_deadline() == AGAIN_S
    assert made.due("ab", "news", AGAIN_S - 0.1) == []
    assert made.due("abc", "news", AGAIN_S - 0.1) == ["c"], "it needs it now, too"
    assert made.due("abc", "news", AGAIN_S) == ["a", "b"], "it may have been lost"


def test_what_is_new_is_told_at_once_or_soon() -> None:
    made = Telling[str]()
    made.due("a", 1, 0.0)
    assert made.due("a", 2, 0.1, within_s=0.5) == []
    assert made.next_deadline() == 0.6
    assert made.due("a", 3, 0.3, within_s=0.5) == [], "it puts nothing off"
    assert made.due("a", 3, 0.6, within_s=0.5) == ["a"]
    assert made.due("a", 4, 0.7) == ["a"]


def test_who_needs_it_no_more_is_forgotten() -> None:
    made = Telling[str]()
    made.due("a", 1, 0.0)
    assert made.due("", 1, 0.1) == []
    assert made.next_deadline() is None
    assert made.due("a", 1, 0.2) == ["a"]
