"""Receive windows: they follow the line, stay within their budget, and are enforced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.net.windows import (
    INITIAL_WINDOW_BYTES,
    MIN_TRIP_S,
    RETURN_SHARE,
    ReceiveWindow,
)
from protocol.errors import RemoteProtocolError
from protocol.relay.holding import Room

MIB = 1024 * 1024


def after(
    window: ReceiveWindow, rate_bytes_per_s: float, trip_s: float, seconds: float, now: float = 0.0
) -> list[int]:
    """Let a peer send all that line and window allow; return the window after each round trip."""
    sizes = []
    for number in range(int(seconds / trip_s)):
        round_bytes = min(window.open_bytes, int(rate_bytes_per_s * trip_s))
        piece = max(1, round_bytes // 50)
        for part in range(0, round_bytes, piece):
            window.charge(min(piece, round_bytes - part))
        for part in range(0, round_bytes, piece):
            moment = now + (number + part / round_bytes) * trip_s
            window.take(min(piece, round_bytes - part), trip_s, moment)
        sizes.append(window.granted_bytes)
    return sizes


@pytest.mark.parametrize(
    ("mbit", "trip_s"), [(20, 0.05), (100, 0.02), (100, 0.1), (100, 0.3), (400, 0.1), (400, 0.2)]
)
def test_a_window_comes_to_cover_the_line_and_stops_there(mbit: float, trip_s: float) -> None:
    window = ReceiveWindow(Room(16 * MIB), 0.0)
    window.most_bytes = 16 * MIB
    rate = mbit * 1e6 / 8
    sizes = after(window, rate, trip_s, 40 * trip_s)
    line = rate * trip_s
    usable = sizes[-1] * (RETURN_SHARE - 1) / RETURN_SHARE
    assert usable >= line
    assert sizes[-1] <= max(INITIAL_WINDOW_BYTES, min(16 * MIB, 4 * line))
    assert sizes[15] == sizes[-1]  # found within fifteen round trips


def test_a_slow_reader_and_an_idle_line_get_no_more() -> None:
    window = ReceiveWindow(Room(16 * MIB), 0.0)
    window.most_bytes = 16 * MIB
    assert after(window, 100_000, 0.1, 10)[-1] == INITIAL_WINDOW_BYTES
    assert after(window, 10_000_000, 0.1, 0.1, now=1000.0)[-1] == INITIAL_WINDOW_BYTES


def test_streams_share_one_budget_and_give_it_back() -> None:
    budget = Room(3 * MIB)
    windows = [ReceiveWindow(budget, 0.0) for _ in range(4)]
    for window in windows:
        window.most_bytes = 16 * MIB
        after(window, 1e9, 0.1, 2)
    granted = sum(window.granted_bytes for window in windows)
    assert granted == 3 * MIB + 4 * INITIAL_WINDOW_BYTES
    for window in windows:
        window.close()
    assert budget.left_bytes == 3 * MIB


@given(
    moves=st.lists(
        st.tuples(st.integers(0, MIB), st.integers(0, MIB), st.floats(0, 1), st.floats(0, 10)),
        max_size=60,
    ),
    most=st.integers(0, 8 * MIB),
    budget_bytes=st.integers(0, 4 * MIB),
)
def test_never_more_than_was_granted(
    moves: list[tuple[int, int, float, float]], most: int, budget_bytes: int
) -> None:
    budget = Room(budget_bytes)
    window = ReceiveWindow(budget, 0.0)
    window.most_bytes = max(most, INITIAL_WINDOW_BYTES)
    buffered, now, peer = 0, 0.0, INITIAL_WINDOW_BYTES
    for sent, taken, pause_s, trip_s in moves:
        now += pause_s
        if sent > peer:
            with pytest.raises(RemoteProtocolError, match="window-exceeded"):
                window.charge(sent)
        else:
            window.charge(sent)
            buffered, peer = buffered + sent, peer - sent
        taken = min(taken, buffered)
        buffered -= taken
        peer += window.take(taken, trip_s, now)
        assert peer == window.open_bytes
        assert 0 <= peer + buffered <= window.granted_bytes
        assert window.granted_bytes <= window.most_bytes
        assert window.granted_bytes - INITIAL_WINDOW_BYTES + budget.left_bytes == budget_bytes


def test_a_short_trip_counts_as_one_that_a_busy_machine_needs() -> None:
    window = ReceiveWindow(Room(16 * MIB), 0.0)
    window.most_bytes = 16 * MIB
    assert after(window, 100e6, MIN_TRIP_S, 1.0)[-1] >= 2 * 100e6 * MIN_TRIP_S
    fast = ReceiveWindow(Room(16 * MIB), 0.0)
    fast.most_bytes = 16 * MIB
    fast.charge(INITIAL_WINDOW_BYTES)
    fast.take(INITIAL_WINDOW_BYTES, 1e-6, 1e-3)  # a burst says nothing about the line yet
    assert fast.granted_bytes == INITIAL_WINDOW_BYTES
