"""Silence: 5 s dead, and our own sleep is nobody else's fault."""

import pytest

from protocol.membership.contacts import DEAD_AFTER_S, Contacts
from tests.support.protocol_examples import peer

A, B = peer(1), peer(2)


def watching(*times: float) -> Contacts:
    """One that is linked with A at 0 and ticks at the times, when nobody is silent yet."""
    contacts = Contacts()
    contacts.linked(A, 0.0)
    assert deaths(contacts, list(times)) == []
    return contacts


def deaths(contacts: Contacts, times: list[float]) -> list[float]:
    """Tick at the times; return when somebody was dead."""
    return [now for now in times for _ in contacts.tick(now)]


def hear(contacts: Contacts, now: float) -> None:
    contacts.heard(A, (), -1, now)


def quarter_seconds(start: float, end: float) -> list[float]:
    return [start + n / 4 for n in range(1, int((end - start) * 4) + 1)]


def test_who_is_silent_is_named_once_until_it_is_heard() -> None:
    contacts = watching(*quarter_seconds(0, 4.75))
    assert contacts.tick(DEAD_AFTER_S) == {A: DEAD_AFTER_S}
    assert contacts.tick(DEAD_AFTER_S + 0.25) == {}
    hear(contacts, 6.1)
    assert deaths(contacts, quarter_seconds(6, 12)) == [11.25]
    contacts.linked(A, 12.0)
    assert deaths(contacts, quarter_seconds(12, 18)) == [17.0]


def test_our_own_sleep_is_not_held_against_the_others() -> None:
    contacts = watching(1.0, 2.0, 62.0)  # stopped for a minute
    # the silence before the sleep still counts, and the clock runs again
    assert deaths(contacts, quarter_seconds(62, 67)) == [65.0]


def test_heartbeats_that_waited_while_we_slept_count() -> None:
    contacts = watching(1.0)
    hear(contacts, 60.0)
    assert deaths(contacts, [60.0, 61.0, 62.0]) == []


def test_a_first_link_after_a_long_time_alone_is_no_sleep() -> None:
    contacts = watching()
    contacts.closed(A, by_peer=False, now=0.5)
    hear(contacts, 1.0)
    assert contacts.next_deadline() is None
    contacts.linked(B, 1000.0)
    assert contacts.next_deadline() == 1001.0
    assert deaths(contacts, quarter_seconds(1000, 1006)) == [1005.0]


def test_a_silence_is_judged_when_it_is_long_enough_and_not_a_tick_later() -> None:
    """A hung replica holds its stage up until it is dead."""
    contacts = watching()
    hear(contacts, 0.4)
    seen, now = list[float](), 0.0
    while not seen:
        deadline = contacts.next_deadline()
        assert deadline is not None
        assert deadline > now, "no deadline comes twice"
        now = deadline
        seen += deaths(contacts, [now])
    assert seen == pytest.approx([0.4 + DEAD_AFTER_S])
