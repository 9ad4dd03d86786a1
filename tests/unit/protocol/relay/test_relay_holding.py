"""A slow circuit holds little, a fast one fills its line, and none stands still."""

from collections import deque

import pytest

from protocol.relay.holding import LEAST_BYTES, MOST_BYTES, WINDOW_BYTES, Holding, Room

PIECE = 16 * 1024


def held_at(rate: float) -> tuple[int, int]:
    """Pass pieces on at a rate for 30 s; return the window that stays open, and what was passed."""
    holding, window, passed, now = Holding(Room(), 0.0), WINDOW_BYTES, 0, 0.0
    while now < 30.0:
        assert window >= PIECE, "the sender may send no more"
        window -= PIECE  # the sender fills what it has
        now += PIECE / rate
        passed += PIECE
        window += holding.passed(PIECE, 0.0, now)
    return window, passed


@pytest.mark.parametrize(
    ("rate", "open_bytes"),
    [
        (20_000, LEAST_BYTES),
        (60_000, LEAST_BYTES),
        (300_000, 150_000),
        (1_000_000, WINDOW_BYTES),
        (20_000_000, WINDOW_BYTES),
    ],
)
def test_the_window_is_half_a_second_of_the_rate(rate: float, open_bytes: int) -> None:
    window, passed = held_at(rate)
    assert window == pytest.approx(open_bytes, rel=0.1)
    assert passed > 29 * rate


def test_a_circuit_that_was_idle_starts_again() -> None:
    holding = Holding(Room(), 0.0)
    holding.passed(1000, 0.0, 100.0)  # 10 bytes a second until now
    opened = sum(holding.passed(PIECE, 0.0, 100.0 + number / 1000) for number in range(1000))
    assert opened > 900 * PIECE


def over_a_line(trip_s: float, line: float, far_line: float) -> tuple[float, float]:
    """Send what the window allows over a line to a relay, which passes it on over another one.

    Returns:
        The share of the narrower line that was used, and the most bytes that waited at the relay,
        both in the second half.
    """
    seconds, step, holding = 8.0, 0.001, Holding(Room(), 0.0)
    coming = deque([0.0] * max(1, round(trip_s / 2 / step)))
    credit = deque([0] * len(coming))
    window, waits, passed, most = float(WINDOW_BYTES), 0.0, 0.0, 0.0
    for number in range(round(seconds / step)):
        window += credit.popleft()
        sent = min(window, line * step)
        window -= sent
        coming.append(sent)
        waits += coming.popleft()
        taken = min(waits, far_line * step)
        waits -= taken
        credit.append(holding.passed(int(taken), trip_s, number * step))
        if number * step >= seconds / 2:
            passed, most = passed + taken, max(most, waits)
    return passed / (seconds / 2) / min(line, far_line), most


@pytest.mark.parametrize("trip_s", [0.02, 0.08, 0.2])
@pytest.mark.parametrize(
    ("line", "far_line"),
    [
        (2_500_000, 2_500_000),
        (12_500_000, 12_500_000),
        (12_500_000, 250_000),
        (12_500_000, 2_500_000),
    ],
)
def test_a_circuit_fills_its_line_and_256_kib_at_most_wait(
    trip_s: float, line: float, far_line: float
) -> None:
    share, most = over_a_line(trip_s, line, far_line)
    assert share > 0.95
    assert most <= WINDOW_BYTES


def test_a_round_trip_that_only_waited_somewhere_opens_nothing() -> None:
    holding, window, now = Holding(Room(), 0.0), WINDOW_BYTES, 0.0
    for number in range(8000):
        now += 0.001
        window += holding.passed(2500, 0.3 if number % 4 else 0.02, now) - 2500
    assert window < 1.1 * WINDOW_BYTES


def test_all_windows_together_grow_by_one_room() -> None:
    room = Room()
    windows = []
    for _ in range(50):  # all of them claim to be fast and far away
        holding, window, now = Holding(room, 0.0), WINDOW_BYTES, 0.0
        for _ in range(4000):
            now += 0.001
            window += holding.passed(PIECE, 1000.0, now) - PIECE
        windows.append((window, holding))
        assert LEAST_BYTES <= window <= MOST_BYTES
    assert sum(window - WINDOW_BYTES for window, _ in windows) <= Room().left_bytes
    assert room.left_bytes >= 0
    for _, holding in windows:
        holding.close()
        holding.close()
    assert room == Room()


def test_a_window_that_is_still_large_keeps_its_part_of_the_room() -> None:
    """What was granted may come, however slow the circuit has become."""
    room = Room()
    holding, window, now = Holding(room, 0.0), WINDOW_BYTES, 0.0
    for _ in range(2000):
        now += 0.001
        window += holding.passed(PIECE, 0.2, now) - PIECE
    large = window
    assert large > 2 * WINDOW_BYTES
    for _ in range(40):
        now += 1.0
        window += holding.passed(1000, 0.2, now) - 1000
        assert Room().left_bytes - room.left_bytes >= window - WINDOW_BYTES
    for _ in range(20):
        now += 10.0
        window += holding.passed(large // 20, 0.2, now) - large // 20
    assert room == Room()
